"""Files that parties and servers of a deployment read: the app, keys, certificates, the server's state."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from random import Random

from fedalc.deployment.certificates import _read_authority, make_certificates
from fedalc.deployment.flower_programs import APP
from fedalc.deployment.node_keys import check_node_key, check_public_key, make_node_key
from fedalc.deployment.party import _check_certificate
from fedalc.deployment.state import ServerState, Submitted
from fedalc.deployment.supernode import why_refused
from fedalc.errors import FedalcError
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed_json, mutated
from tests.fuzz.readers.archives import zipped
from tests.fuzz.registry import as_file, reader, workplace


@reader
def app() -> Reader:
    """The app that a server sends to a party (Flower's FAB, a zip archive)."""
    files = {name: (APP / name).read_bytes() for name in ("pyproject.toml", "README.md")} | {".info/CONTENT": b"x"}
    seeds = [zipped(files), zipped(files, zipfile.ZIP_STORED), zipped(files, zipfile.ZIP_BZIP2)]

    def read(data: bytes) -> None:
        if reason := why_refused(data):
            raise FedalcError(reason)

    def make(_seed: bytes, rng: Random) -> bytes:
        pyproject = mutated(files["pyproject.toml"], [files["README.md"]], rng)
        made = zipped(files | {"pyproject.toml": pyproject}, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
        return made if rng.random() < 0.7 else mutated(made, seeds, rng)

    read(seeds[0])
    return Reader("app", "the app a server sends to a party", seeds, read, make)


@reader
def node_key() -> Reader:
    place = workplace() / "node-keys"
    place.mkdir(exist_ok=True)
    make_node_key(place / "seed")
    seeds = [(place / "seed").read_bytes()]
    file = place / "node.key"
    file.touch(0o600)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        check_node_key(file)

    def make(seed: bytes, rng: Random) -> bytes:
        """Change the content inside the base64."""
        import base64

        lines = seed.split(b"\n")
        inner = mutated(base64.b64decode(b"".join(lines[1:-2])), [b"nistp256", b"ssh-rsa", b"none"], rng)
        return b"\n".join((lines[0], base64.b64encode(inner), *lines[-2:]))

    return Reader("node-key", "a party's private key", seeds, read, make)


@reader
def public_key() -> Reader:
    place = workplace() / "public-keys"
    place.mkdir(exist_ok=True)
    seeds = [make_node_key(place / "seed").read_bytes()]
    return Reader("public-key", "a party's public key", seeds, as_file("node.pub", check_public_key))


def _pem(seed: bytes, rng: Random) -> bytes:
    """Change the content inside the base64."""
    import base64

    lines = seed.strip().split(b"\n")
    inner = mutated(
        base64.b64decode(b"".join(lines[1:-1])), [b"\x30\x82\x01\x0a", b"\x06\x05\x2b\x81\x04\x00\x22"], rng
    )
    return b"\n".join((lines[0], base64.b64encode(inner), lines[-1], b""))


@reader
def certificate() -> Reader:
    files = make_certificates(workplace() / "certificates", ["localhost"], 30)
    seeds = [files.authority.read_bytes(), files.server.read_bytes()]
    return Reader("certificate", "the server's certificate", seeds, as_file("ca.crt", _check_certificate), _pem)


@reader
def authority() -> Reader:
    files = make_certificates(workplace() / "authority", ["localhost"], 30)
    seeds = [files.authority_key.read_bytes(), files.authority.read_bytes()]

    def read(data: bytes) -> None:
        key = b"PRIVATE" in data[:64]
        files.authority_key.write_bytes(data if key else seeds[0])
        files.authority.write_bytes(seeds[1] if key else data)
        _read_authority(files)

    return Reader("authority", "a certificate authority's files", seeds, read, _pem)


@reader
def server_state() -> Reader:
    """Files of the server's state folder: connection, parties, submitted runs."""
    state = ServerState(workplace() / "state")
    run = Path("/runs/a")
    state.write_connection("127.0.0.1:9092", Path("/ca.crt"))
    state.add_party("one", "123")
    state.remember(run, Submitted("7", {"num-parties": 3}))
    names = ("flower/config.toml", "parties.json", state._submission_file(run))
    files = {name: (state.folder / name).read_bytes() for name in names}

    def read(data: bytes) -> None:
        which, _, content = data.partition(b"\n")
        for name, good in files.items():
            (state.folder / name).write_bytes(content if name.encode() == which else good)
        state.connection()
        state.parties()
        state.submitted(run)

    seeds = [name.encode() + b"\n" + content for name, content in files.items()]

    def make(_seed: bytes, rng: Random) -> bytes:
        name = rng.choice(names[1:])
        return name.encode() + b"\n" + changed_json(files[name], rng)

    assert json.loads(files["parties.json"])
    return Reader("server-state", "files of the server's state folder", seeds, read, make)
