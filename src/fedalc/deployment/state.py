"""The server's state folder: Flower's database and home, the registered parties, and the submitted runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalc.config.schema import PRIVACY_LEDGER
from fedalc.core.atomic_files import write_text
from fedalc.core.safe_parsing import Unreadable, parse_toml, read_json_object
from fedalc.deployment.flower_programs import CONNECTION, Flower, toml_value
from fedalc.errors import FedalcError


@dataclass(frozen=True)
class Submitted:
    """A run as submitted to Flower."""

    run: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class ServerState:
    """Paths are absolute, because other programs use them from other folders."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.resolve())

    @property
    def database(self) -> Path:
        return self.folder / "flower.db"

    @property
    def home(self) -> Path:
        return self.folder / "flower"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def privacy_ledger(self) -> Path:
        """The privacy budget that all runs of this server have spent: fedalc.labels.privacy.ledger."""
        return self.folder / PRIVACY_LEDGER

    @property
    def flower(self) -> Flower:
        self.connection()
        return Flower(self.home)

    def write_connection(self, address: str, certificate: Path | None) -> None:
        """Write how Flower's command line reaches the server from this machine."""
        trust = "insecure = true" if certificate is None else f"root-certificates = {toml_value(str(certificate))}"
        write_text(
            self._connection_file,
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f"[superlink.{CONNECTION}]\naddress = {toml_value(address)}\n{trust}\n",
        )

    def connection(self) -> tuple[str, Path | None]:
        """Return the server's address, and the certificate to verify it with."""
        try:
            known = parse_toml(self._connection_file.read_bytes())["superlink"][CONNECTION]
            address, certificate = known["address"], known.get("root-certificates")
            if not isinstance(address, str) or not isinstance(certificate, str | None):
                raise TypeError("no address")
        except FileNotFoundError:
            raise FedalcError(
                f"{self.folder}: no server has been started with this state folder; "
                "start one with `fedalc deploy server --state FOLDER`"
            ) from None
        except (Unreadable, KeyError, TypeError, AttributeError, OSError) as error:
            raise FedalcError(
                f"{self._connection_file}: damaged ({error}); start the server again, which rewrites it"
            ) from None
        return address, None if certificate is None else Path(certificate)

    def parties(self) -> dict[str, str]:
        """Return the registered parties: name → node id."""
        parties = self._read("parties.json")
        if not all(isinstance(node, str) for node in parties.values()):
            raise FedalcError(f"{self.folder / 'parties.json'}: damaged: a node id is not a string")
        return parties

    def add_party(self, name: str, node: str) -> None:
        self._write("parties.json", {**self.parties(), name: node})

    def remove_party(self, name: str) -> None:
        self._write("parties.json", {party: node for party, node in self.parties().items() if party != name})

    def submitted(self, run_folder: Path) -> Submitted | None:
        """Return the latest run that was submitted for this folder."""
        known = self._read(self._submission_file(run_folder))
        if known and not (isinstance(known.get("run"), str) and isinstance(known.get("settings"), dict)):
            raise FedalcError(f"{self.folder / self._submission_file(run_folder)}: damaged; remove it")
        return Submitted(known["run"], known["settings"]) if known else None

    def remember(self, run_folder: Path, submitted: Submitted) -> None:
        self._write(self._submission_file(run_folder), {"run": submitted.run, "settings": submitted.settings})

    def settings_file(self, run_folder: Path) -> Path:
        return self.folder / Path(self._submission_file(run_folder)).with_suffix(".toml")

    @property
    def _connection_file(self) -> Path:
        return self.home / "config.toml"

    def _submission_file(self, run_folder: Path) -> str:
        """Return a file name that differs for folders of the same name in different places."""
        return f"runs/{run_folder.name}-{hashlib.sha256(str(run_folder).encode()).hexdigest()[:8]}.json"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return read_json_object(self.folder / name, "restore the file, or start with a new state folder")
        except FileNotFoundError:
            return {}

    def _write(self, name: str, values: dict[str, Any]) -> None:
        write_text(self.folder / name, json.dumps(values, indent=2) + "\n")
