"""A party's side: its data and keys checked, then a SuperNode that works for the server until it is told to end."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    """`settings` is what the party's app reads: where data and key are, and how they are to be used."""

    settings: NodeSettings
    server: str
    certificate: Path | None
    node_key: Path | None
    state: Path
    port: int | None = None
    any_app: bool = False

    def check(self) -> str:
        """Whatever can be found wrong before the server is called; what the party holds, in words.

        Data and key are read here as the party's app will read them for every message.
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
        from fedalc.deployment.flower.limits import Limits
        from fedalc.deployment.flower.party import Party

        check_device(str(self.settings.get("device", "cpu")))
        Limits.from_node_config(self.settings)
        said: list[str] = []
        # Of pictures the server says whether it wants those that can be read if not all can.
        images = ImageOptions(broken="skip", tell=said.append)
        holding = Party.from_node_config(self.settings, images).holding
        said.append(f"{self.settings['data']}: {len(holding.split):,} instances under {len(holding.names):,} labels")
        return "\n".join(said)

    def command(self) -> list[str]:
        certificate = self.certificate
        trust = ["--insecure"] if certificate is None else ["--root-certificates", str(certificate.resolve())]
        if self.node_key is not None:
            trust += ["--auth-supernode-private-key", str(self.node_key.resolve())]
        port = self.port or free_port()
        where = ["--superlink", self.server, "--host", "127.0.0.1", "--port", str(port)]
        settings = ["--node-config", str(self.settings_file)]
        node = [program("flower-supernode")] if self.any_app else python_module("fedalc.deployment.supernode")
        return [*node, *trust, *where, *settings]

    @property
    def settings_file(self) -> Path:
        return self.state.resolve() / "node.toml"

    def start(self) -> Process:
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)  # also one that was there: it says where data and key are
        write_settings(self.settings_file, self.settings)
        place = self.state.resolve()
        return Process.start("the party", self.command(), place / "party.log", environment(place / "flower"))


def run_party(party: PartySide, say: Callable[[str], None], patience: float) -> None:
    """In the foreground, until it is told to end.

    For a minute after a party was cut off, the server takes it to be still there and does not let it in again. So a
    refusal is final only after `patience` seconds.
    """
    until = time.monotonic() + patience
    with signals_interrupt():
        while True:
            seen, process = _Seen(say), party.start()
            follow(process, seen.line)
            if not seen.refused:
                raise FedalcError(f"the party's node ended by itself; its log: {process.log}\n{process.tail()}")
            if time.monotonic() + _AGAIN_AFTER > until:
                raise FedalcError(f"{party.server} refused this party: {_why(party)}")
            left = until - time.monotonic()
            say(f"refused: not registered, or cut off a minute ago; trying again for {left:.0f} s")
            time.sleep(_AGAIN_AFTER)


def _why(party: PartySide) -> str:
    if party.node_key is None:
        return "it wants a node key (--node-key)"
    return f"its node key is not registered there (on the server: fedalc deploy register {party.node_key}.pub NAME)"


class _Seen:
    """Passes on what a person wants to know, and remembers whether the server said no."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.refused = False

    def line(self, line: str) -> None:
        text = plain(line)
        self.refused |= _REFUSED in text
        if connected := _CONNECTED.search(text):
            self.say(f"connected, as node {connected[1]}; Ctrl-C ends it")
        elif text and not self.refused and not any(part in text for part in _NOISE):
            self.say(text)


def check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if not host or not digits or not 0 < int(port) < 65536 or "/" in address:
        raise ConfigError(f"--server: expected HOST:PORT, found {address[:200]!r}")


def _check_server(address: str, certificate: Path) -> None:
    """Whether it is the one that the certificate vouches for. One that does not answer may do so later."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(certificate))
    except OSError as error:  # also ssl.SSLError
        raise FedalcError(f"{certificate}: not a certificate ({error}); ask the server's side for its ca.crt") from None
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain_,
            context.wrap_socket(plain_, server_hostname=host),
        ):
            pass
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", None) or error.reason or error
        raise FedalcError(
            f"{address}: not the server that {certificate} vouches for ({why}); ask the server's side for its ca.crt, "
            "and call it by the name it was made for"
        ) from None
    except OSError:
        return


def _check_certificate(file: Path) -> None:
    from cryptography import x509

    try:
        x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise FedalcError(f"{file}: the server's certificate cannot be read: {error.strerror}") from None
    except (ValueError, x509.InvalidVersion):
        raise FedalcError(f"{file}: not a certificate; ask the server's side for its ca.crt") from None
