"""Foreign or damaged files: each gives an error that says where and what to do."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

import fedalc
from fedalc.cli.options import listed_seeds
from fedalc.config.resolve import experiment
from fedalc.core.tensor_folder import load_facts
from fedalc.data.catalog import fetch
from fedalc.data.formats.arff import read_arff
from fedalc.data.formats.arff_header import LabelRule
from fedalc.data.formats.voc import VARIANTS, read_voc
from fedalc.data.storage import Place
from fedalc.deployment.flower.run_config import read_run_config
from fedalc.deployment.flower_programs import APP
from fedalc.deployment.node_keys import check_node_key, make_node_key
from fedalc.deployment.party import check_address
from fedalc.deployment.state import ServerState
from fedalc.deployment.supernode import MOST_BYTES, why_refused
from fedalc.errors import ConfigError, DataError, FedalcError
from fedalc.report.page import read_left_out
from fedalc.reproduction.results import read_json
from fedalc.reproduction.toml_files import read_toml
from fedalc.runs import history
from fedalc.workflows.load_model import load_model
from tests.data.layouts import voc, write_files
from tests.problems import small_dataset
from tests.report.results import record

DIGITS = "9" * 5000
DEEP_JSON = "[" * 100_000
NESTED = "[" * 500 + "]" * 500  # Python reads it; writing it again, deeper in the stack, may fail


# --- data ---


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "cp932", "idna"])
def test_xml_in_an_encoding_that_cannot_be_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "labels.xml").write_text(
        f'<?xml version="1.0" encoding="{encoding}"?><labels><label name="l"/></labels>'
    )
    (tmp_path / "t.arff").write_text("@relation t\n@attribute a numeric\n@attribute l {0,1}\n@data\n1,0\n")
    with pytest.raises(DataError, match=r"labels\.xml:1: has an encoding that cannot be read .*: save it as UTF-8"):
        read_arff(tmp_path / "t.arff")
    files = voc()
    name = next(name for name in files if name.endswith(".xml"))
    files[name] = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + files[name]
    write_files(tmp_path / "voc", files)
    with pytest.raises(DataError, match=r"\.xml:1: has an encoding that cannot be read"):
        read_voc(Place(tmp_path / "voc"), VARIANTS["2012"])


def test_arff_with_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    header = "@relation {}\n@attribute a numeric\n@attribute l {{0,1}}\n@data\n"
    file = tmp_path / "t.arff"
    file.write_text(header.format(f"'x: -C {DIGITS}'") + "1,0\n")
    with pytest.raises(DataError, match="nothing says which attributes are labels"):
        read_arff(file)
    file.write_text(header.format("t") + f"{{{DIGITS} 1}}\n")
    with pytest.raises(DataError, match=r"t\.arff:5: attribute 9{40} is out of range"):
        read_arff(file, LabelRule(last=1))


@pytest.mark.parametrize("number", [DIGITS, "\u00b2"])
def test_numbers_in_a_web_servers_headers(number: str) -> None:
    headers = {"Content-Range": f"bytes {number}-7/8"}
    assert fetch._first_byte(headers) is None
    assert fetch._total_length({"Content-Range": f"bytes */{number}"}) is None


# --- settings ---

BAD_TOML = {
    "deep lists": "a = " + "[" * 5000,
    "deep keys": "seed" + ".a" * 1500 + " = 1",
    "many digits": f"seed = {DIGITS}",
    "many digits in hexadecimal": f"seed = 0x{'f' * 5000}",
    "not UTF-8": "name = 'é'".encode("latin-1"),
    "no such day": "a = 2024-02-31",
}


@pytest.mark.parametrize("what", BAD_TOML)
def test_settings_that_cannot_be_read(tmp_path: Path, what: str) -> None:
    text, file = BAD_TOML[what], tmp_path / "settings.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        experiment(file=file)
    with pytest.raises(ConfigError, match=re.escape(str(file))):
        read_toml(file)
    state = ServerState(tmp_path / "state")
    (state.home).mkdir(parents=True)
    (state.home / "config.toml").write_bytes(file.read_bytes())
    with pytest.raises(FedalcError, match="start the server again"):
        state.connection()


@pytest.mark.parametrize(
    "text", ["seed" + ".a" * 5000 + "=1", f"seed={DIGITS}", f"seed=0x{'f' * 5000}", "seed=" + "[" * 5000]
)
def test_an_override_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError):
        experiment({}, overrides=[text])


def test_numbers_on_the_command_line() -> None:
    for address in (f"host:{DIGITS}", "host:\u00b2", "host:\u0663"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            check_address(address)
    with pytest.raises(ConfigError, match="--seeds"):
        listed_seeds(DIGITS)
    for value in (10**400, 16**5000):
        with pytest.raises(ConfigError, match="more than 64 bits"):
            read_run_config({"wait": value}, 1)


# --- runs ---

BAD_LINES: dict[str, bytes] = {
    "not UTF-8": b'{"phase": "select", "round": 1, "a": "\xff"}',
    "no phase": b'{"round": 1}',
    "no round": b'{"phase": "select"}',
    "not an object": b"[1]",
    "many digits": b'{"phase": "select", "round": %s}' % DIGITS.encode(),
    "without end": DEEP_JSON.encode(),
    "nested": b'{"phase": "select", "round": 1, "a": %s}' % NESTED.encode(),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_line_of_the_history(tmp_path: Path, what: str) -> None:
    file, good = tmp_path / "history.jsonl", json.dumps(record(1)).encode()
    file.write_bytes(good + b"\n" + BAD_LINES[what] + b"\n" + good + b"\n")
    with pytest.raises(DataError, match=r"history\.jsonl:2: .*; remove the line"):
        history.read(file)
    file.write_bytes(good + b"\n" + BAD_LINES[what])  # cut off by a crash
    assert history.read(file) == [record(1)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedalc.train(data=small_dataset(), method="fedavg", rounds=2, folder=folder)
    return folder


BAD_RESULTS: dict[str, bytes] = {
    "empty": b"",
    "cut off": b'{"metrics": {"P@1": ',
    "not UTF-8": b'{"metrics": {"\xff": 1}}',
    "not an object": b"[]",
    "without end": DEEP_JSON.encode(),
    "many digits": b'{"metrics": {"P@1": %s}}' % DIGITS.encode(),
    "no metrics": b"{}",
    "metrics that are none": b'{"metrics": {"P@1": "high"}}',
    "another kind of value": b'{"metrics": {}, "selection": 7}',
    "another kind of value within": b'{"metrics": {}, "selection": {"metrics": 7}}',
}


@pytest.mark.parametrize("what", BAD_RESULTS)
def test_a_damaged_result(finished: Path, what: str) -> None:
    file = finished / "result.json"
    good = file.read_bytes()
    try:
        file.write_bytes(BAD_RESULTS[what])
        with pytest.raises(FedalcError, match=r"result\.json: damaged: .*fedalc train --resume"):
            fedalc.load_run(finished)
    finally:
        file.write_bytes(good)


def test_a_result_is_made_again_as_the_error_says(finished: Path) -> None:
    settings, before = fedalc.load_run(finished).settings, fedalc.load_run(finished).metrics
    (finished / "result.json").unlink()
    fedalc.train(settings, data=small_dataset(), folder=finished, resume=True)
    assert fedalc.load_run(finished).metrics == before


@pytest.mark.parametrize("text", [DEEP_JSON, f'{{"format": {DIGITS}}}'])
def test_damaged_facts_of_a_model(tmp_path: Path, finished: Path, text: str) -> None:
    folder = write_files(tmp_path / "model", {"tensors.safetensors": b"", "facts.json": text.encode()})
    with pytest.raises(FedalcError, match="damaged"):
        load_facts(folder)


def test_facts_that_ask_for_terabytes(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared with the weights before an encoder is built."""
    import torch

    facts = json.loads((finished / "model" / "facts.json").read_text())
    facts["features"] = 1 << 33
    tensors = (finished / "model" / "tensors.safetensors").read_bytes()
    folder = write_files(tmp_path / "model", {"tensors.safetensors": tensors, "facts.json": json.dumps(facts).encode()})
    asked: list[Any] = []
    empty = torch.empty

    def noted(*size: Any, **more: Any) -> Any:
        made = empty(*size, **more)
        asked.append(made.device.type)
        return made

    monkeypatch.setattr(torch, "empty", noted)
    with pytest.raises(FedalcError, match=r"damaged.*should be \(8589934592,"):
        load_model(folder)
    assert set(asked) <= {"meta"}


def test_other_files_of_runs(tmp_path: Path) -> None:
    log = tmp_path / "parties.jsonl"
    log.write_text(f'{{"round": {DIGITS}}}\n{DEEP_JSON}\n{{"round": 2, "party": "b", "what": "left out"}}\n')
    assert read_left_out(log) == [("2", "b", "left out")]
    table = tmp_path / "table.json"
    table.write_text('{"title": 1}')
    with pytest.raises(FedalcError, match=r"table\.json: not a valid table"):
        read_json(table)


# --- deployment ---


def app(files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


PYPROJECT = (APP / "pyproject.toml").read_bytes()


def test_an_app_that_is_a_bomb() -> None:
    """2.5 MB that unpack to 2.5 GB. Only the archive's own headers are read."""
    assert why_refused(app({"pyproject.toml": PYPROJECT})) == ""
    assert "unpacks to more than" in why_refused(app({"pyproject.toml": PYPROJECT, "README.md": bytes(64 << 20)}))
    assert "unpacks to more than" in why_refused(app({f".info/{n}": b"" for n in range(100)}))
    assert f"{MOST_BYTES + 1:,} bytes" in why_refused(bytes(MOST_BYTES + 1))


@pytest.mark.parametrize(
    "pyproject",
    [b"a = " + b"[" * 5000, b"a = %s" % DIGITS.encode(), b"tool = 1", b"tool.flwr.app.components = [1]", b"\xff"],
)
def test_an_app_that_cannot_be_read(pyproject: bytes) -> None:
    assert "it cannot be read" in why_refused(app({"pyproject.toml": pyproject}))


def test_an_app_with_a_password_or_damage() -> None:
    good = app({"pyproject.toml": PYPROJECT})
    locked, unknown, broken = bytearray(good), bytearray(good), bytearray(good)
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = good.index(magic) + flags
        locked[at] |= 1
        unknown[at + 2 : at + 4] = b"\x5d\x00"  # a compression that nobody has
    broken[60:90] = bytes(30)
    for bad in (locked, unknown, broken):
        assert "it cannot be read" in why_refused(bytes(bad))


def test_node_keys_that_a_library_stumbles_over(tmp_path: Path) -> None:
    import base64

    make_node_key(tmp_path / "good")
    first, *inner, last, _ = (tmp_path / "good").read_bytes().split(b"\n")
    blob = base64.b64decode(b"".join(inner))
    file = tmp_path / "node.key"
    file.touch(0o600)
    at = blob.index(b"\x04", blob.index(b"nistp384", blob.index(b"nistp384") + 1))
    compressed = blob[:at] + b"\x02" + blob[at + 1 :]  # NotImplementedError
    unknown = blob.replace(b"none", b"nono", 1)  # UnsupportedAlgorithm
    for bad in (compressed, unknown, blob[:-40]):
        file.write_bytes(b"\n".join((first, base64.b64encode(bad), last, b"")))
        with pytest.raises(FedalcError, match="not a party's private key"):
            check_node_key(file)
    file.write_bytes(bytes(1 << 20))
    with pytest.raises(FedalcError, match="not a party's private key"):
        check_node_key(file)


@pytest.mark.parametrize("text", ["", "[]", DEEP_JSON, f'{{"one": {DIGITS}}}', '{"one": 7}'])
def test_a_servers_list_of_parties(tmp_path: Path, text: str) -> None:
    (tmp_path / "parties.json").write_text(text)
    with pytest.raises(FedalcError, match=r"parties\.json: damaged"):
        ServerState(tmp_path).parties()
