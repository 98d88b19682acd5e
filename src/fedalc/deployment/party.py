"""Run a party: check its data and keys, then work for the server as a SuperNode until interrupted."""

from __future__ import annotations

import re
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedalc.deployment.flower_programs import environment, plain, program, python_module, require_flower, write_settings
from fedalc.deployment.node_keys import check_node_key
from fedalc.deployment.processes import Process, follow, free_port, signals_interrupt
from fedalc.errors import ConfigError, FedalcError

_REFUSED = "Exit Code: 305"
_CONNECTED = re.compile(r"SuperNode ID: (\d+)")
_AGAIN_AFTER = 5.0  # seconds
_NOISE = ("Started server process", "Waiting for application", "Application startup", "Application shutdown",
          "Uvicorn running", "FastAPI lifespan", "Shutting down", "Finished server process", "Starting Flower",
          "For more information", "Start `flwr-clientapp` process")  # fmt: skip

NodeSettings = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class PartySide:
    """`settings`: what the party's app reads, such as the paths of data and key. `fresh_processes`: a new process for
    every message. `worker_memory_mb`: what one process may keep between messages (default: a quarter of the machine's
    memory)."""

    settings: NodeSettings
    server: str
    certificate: Path | None
    node_key: Path | None
    state: Path
    port: int | None = None
    any_app: bool = False
    fresh_processes: bool = False
    worker_memory_mb: int | None = None

    def check(self) -> str:
        """Check everything that can be checked without the server, and return a description of the party's data.

        Reads data and key as the party's app will read them for every message.
        """
        require_flower()
        check_address(self.server)
        if self.certificate is not None:
            _check_certificate(self.certificate)
            _check_server(self.server, self.certificate)
        if self.node_key is not None:
            check_node_key(self.node_key)
        from fedalc.core.devices import check_device
        from fedalc.data.images.images import ImageOptions
        from fedalc.data.pretrained.weights import digest_of, find_weights
        from fedalc.deployment.flower.limits import Limits
        from fedalc.deployment.flower.party import Party
        from fedalc.deployment.flower.party_network import own_weights

        check_device(str(self.settings.get("device", "cpu")))
        Limits.from_node_config(self.settings)
        lines: list[str] = []
        # The server decides whether to skip pictures that cannot be read.
        images = ImageOptions(broken="skip", tell=lines.append)
        for source in own_weights(self.settings):
            lines.append(f"{source}: pretrained weights {digest_of(find_weights(source))[:12]}…")
        holding = Party.from_node_config(self.settings, images).holding
        lines.append(f"{self.settings['data']}: {len(holding.split):,} instances of {len(holding.names):,} labels")
        return "\n".join(lines)

    def command(self) -> list[str]:
        certificate = self.certificate
        trust = ["--insecure"] if certificate is None else ["--root-certificates", str(certificate.resolve())]
        if self.node_key is not None:
            trust += ["--auth-supernode-private-key", str(self.node_key.resolve())]
        port = self.port or free_port()
        where = ["--superlink", self.server, "--host", "127.0.0.1", "--port", str(port)]
        settings = ["--node-config", str(self.settings_file)]
        node = [program("flower-supernode")] if self.any_app else python_module("fedalc.deployment.supernode")
        return [*node, *trust, *where, *settings, *self._worker()]

    def _worker(self) -> list[str]:
        """Return the arguments for a worker that is kept. Forking is for Linux: elsewhere libraries may not bear it."""
        if self.fresh_processes or self.any_app or sys.platform != "linux":
            return []
        most = self.worker_memory_mb or psutil.virtual_memory().total // 4 >> 20
        return ["--worker-memory-mb", str(most)]

    @property
    def settings_file(self) -> Path:
        return self.state.resolve() / "node.toml"

    def start(self) -> Process:
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)  # also an existing folder: it has the paths of data and key
        write_settings(self.settings_file, self.settings)
        folder = self.state.resolve()
        return Process.start("the party", self.command(), folder / "party.log", environment(folder / "flower"))


def run_party(party: PartySide, say: Callable[[str], None], patience: float) -> None:
    """Run in the foreground until interrupted.

    For a minute after a lost connection, the server considers a party connected and refuses it. So a refusal is final
    only after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    with signals_interrupt():
        while True:
            output, process = _Output(say), party.start()
            follow(process, output.line)
            if not output.refused:
                raise FedalcError(f"the party's node ended unexpectedly; its log: {process.log}\n{process.tail()}")
            if time.monotonic() + _AGAIN_AFTER > deadline:
                raise FedalcError(f"{party.server} refused this party: {_why(party)}")
            seconds = deadline - time.monotonic()
            say(f"refused: not registered, or disconnected a minute ago; retrying for {seconds:.0f} s")
            time.sleep(_AGAIN_AFTER)


def _why(party: PartySide) -> str:
    if party.node_key is None:
        return "it requires a node key (--node-key)"
    return f"its node key is not registered (on the server: fedalc deploy register {party.node_key}.pub NAME)"


class _Output:
    """Passes on the lines that matter to users, and remembers whether the server refused the party."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.refused = False

    def line(self, line: str) -> None:
        text = plain(line)
        self.refused |= _REFUSED in text
        if connected := _CONNECTED.search(text):
            self.say(f"connected as node {connected[1]}; stop with Ctrl-C")
        elif text and not self.refused and not any(part in text for part in _NOISE):
            self.say(text)


def check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if not host or not digits or not 0 < int(port) < 65536 or "/" in address:
        raise ConfigError(f"--server: expected HOST:PORT, found {address[:200]!r}")


def _check_server(address: str, certificate: Path) -> None:
    """Check the server's certificate. A server that does not answer yet is accepted."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except OSError as error:  # also ssl.SSLError
        raise FedalcError(
            f"{certificate}: not a certificate ({error}); ask the server's operator for its ca.crt"
        ) from None
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain_,
            context.wrap_socket(plain_, server_hostname=host),
        ):
            pass
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or error
        raise FedalcError(
            f"{address}: its certificate does not match {certificate} ({why}); ask the server's operator for its "
            "ca.crt, and use the host name that the certificate was made for"
        ) from None
    except OSError:
        return


def _check_certificate(file: Path) -> None:
    from cryptography import x509

    try:
        x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise FedalcError(f"{file}: cannot read the server's certificate: {error.strerror}") from None
    except (ValueError, x509.InvalidVersion):
        raise FedalcError(f"{file}: not a certificate; ask the server's operator for its ca.crt") from None
