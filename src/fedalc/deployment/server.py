"""Run the server: a SuperLink with certificates, node authentication and a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedalc.deployment.certificates import Certificates
from fedalc.deployment.flower_programs import environment, python_module, require_flower
from fedalc.deployment.processes import Process, follow, is_healthy, signals_interrupt
from fedalc.deployment.state import ServerState
from fedalc.errors import FedalcError
from fedalc.runs.folder import only_writer

_START_WITHIN = 120.0  # seconds, on a busy machine


@dataclass(frozen=True)
class Server:
    """Without certificates it uses plain HTTP and accepts everyone: for trials on one machine."""

    state: ServerState
    certificates: Certificates | None
    host: str = "0.0.0.0"
    port: int = 9443
    max_request_mb: int = 64
    max_reply_mb: int = 1024
    max_connections: int = 1000
    messages_in_memory: bool = False

    @property
    def own_address(self) -> str:
        """The address for programs on this machine."""
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
        host = wildcard.get(self.host, self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def command(self) -> list[str]:
        if self.certificates is None:
            trust = ["--insecure"]
        else:
            trust = [
                *("--ssl-ca-certfile", str(self.certificates.authority.resolve())),
                *("--ssl-certfile", str(self.certificates.server.resolve())),
                *("--ssl-keyfile", str(self.certificates.server_key.resolve())),
                "--enable-supernode-auth",
            ]
        where = ["--host", self.host, "--port", str(self.port), "--database", str(self.state.database.resolve())]
        limits = [
            *("--max-request-mb", str(self.max_request_mb)),
            *("--max-reply-mb", str(self.max_reply_mb)),
            *("--max-connections", str(self.max_connections)),
        ]
        messages = ["--messages-in-memory"] if self.messages_in_memory else []
        return [*python_module("fedalc.deployment.superlink"), *trust, *where, *limits, *messages]

    @contextmanager
    def running(self) -> Iterator[Process]:
        """Yield the running server, the only one with this state folder. The SuperLink inherits the lock: if it
        outlives us, no other server can start there."""
        busy = "another server is running with this state folder; stop it, or choose another --state"
        with only_writer(self.state.folder, busy) as lock:
            process = self._start(lock)
            try:
                yield process
            finally:
                process.end()

    def _start(self, lock: int) -> Process:
        require_flower()
        if self.certificates is not None:
            self.certificates.check()
        certificate = None if self.certificates is None else self.certificates.authority.resolve()
        if is_healthy(self.own_address, certificate):
            raise FedalcError(
                f"{self.own_address}: a server is already running there; stop it, or choose another --port"
            )
        self.state.folder.chmod(0o700)
        self.state.write_connection(self.own_address, certificate)
        process = Process.start("the server", self.command(), self.state.log, environment(self.state.home, 1.0), [lock])
        try:
            process.wait_for(lambda: is_healthy(self.own_address, certificate), _START_WITHIN, "answering")
        except BaseException:
            process.end()
            raise
        return process


def run_server(server: Server, say: Callable[[str], None]) -> None:
    """Run in the foreground until interrupted."""
    with signals_interrupt(), server.running() as process:
        say(f"the server is ready at {server.host}:{server.port}; log: {server.state.log}; stop with Ctrl-C")
        code = follow(process, lambda line: None)
    raise FedalcError(f"the server ended unexpectedly (exit code {code}):\n{process.tail()}")
