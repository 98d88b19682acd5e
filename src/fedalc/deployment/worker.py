"""A party's worker: a process with libraries and data loaded, which answers messages one after another.

It does what Flower's `flwr-clientapp` does for one message, over the same API of the SuperNode. But it unpacks no app
and loads no code by name: it runs the client app of the fedalc that the party has installed, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fedalc.deployment.processes import end_with_parent

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

PRELOADED = ["fedalc.deployment.flower.client_app", "flwr.supernode.runtime.run_clientapp"]
"""What the process that workers are forked from imports: no data, no keys, no threads."""
_log = logging.getLogger("fedalc.party")


def work(channel: Connection, address: str) -> None:
    """Answer the messages whose tokens come through the channel, until it is closed."""
    end_with_parent()
    from flwr.supercore.utils import disable_process_dumping

    from fedalc.deployment.flower.client_app import app
    from fedalc.deployment.flower.kept_party import keep_party

    disable_process_dumping(strict=False)  # no other program of this user reads its memory, which has data and key
    keep_party()
    with contextlib.suppress(EOFError):
        while token := channel.recv_bytes():
            answer(app, address, token.decode("ascii"))
            channel.send_bytes(b"done")


def answer(app: ClientApp, address: str, token: str) -> None:
    """Fetch the message that the token is for, and push the answer. Raises if the app does, after it has said so."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    with contextlib.closing(_client(address, token)) as client:
        message, context, _, _ = pull_task_input(client)
        try:
            reply = app(message=message, context=context)
        except Exception as error:
            problem = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, type(error).__name__)
            push_message(client, Message(problem, reply_to=message), context)
            push_task_output(client, None, SubStatus.FAILED, type(error).__name__)
            raise
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.COMPLETED, "")


def _client(address: str, token: str) -> Any:
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # it is this machine's loopback, as with Flower's own processes
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor("flwr-clientapp"), RuntimeTokenHttpInterceptor(token)],
        retry_invoker=make_simple_http_retry_invoker(),
    )
