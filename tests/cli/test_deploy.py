"""`fedalc deploy …` on the command line: what it refuses before it starts a process, and what it starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from fedalc.cli.app import app
from fedalc.data.load import load_held
from fedalc.data.synthetic.demo import DemoSize, make_demo
from fedalc.deployment.certificates import Certificates, make_certificates
from fedalc.deployment.flower.party import picture_size
from fedalc.deployment.gate_limits import MIB, Limits
from fedalc.deployment.local import split_by_labels, write_data
from fedalc.deployment.node_keys import make_node_key
from fedalc.deployment.party import PartySide, run_party
from fedalc.deployment.processes import free_port
from fedalc.deployment.server import Server
from fedalc.deployment.state import ServerState
from fedalc.deployment.superlink import read_arguments
from fedalc.errors import FedalcError
from fedalc.labels.collection.keys import Key


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["deploy", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a party's files: data, the shared key, its node key, the server's certificate."""
    folder = tmp_path_factory.mktemp("party")
    data = make_demo(DemoSize(train=60, test=5, words=50))
    held, names = split_by_labels(data.train, data.label_names, 2)[0]
    write_data(folder / "my data", held, names)
    Key.fresh().write(folder / "key")
    make_node_key(folder / "node")
    make_certificates(folder / "certificates", ["localhost"], days=1)
    return folder


def party(made: Path, **changes: str | None) -> list[str]:
    options: dict[str, str | None] = {
        "key": str(made / "key"),
        "server": "127.0.0.1:9443",
        "certificate": str(made / "certificates" / "ca.crt"),
        "node-key": str(made / "node"),
    }
    data = changes.pop("data", str(made / "my data"))
    given = {name: value for name, value in (options | changes).items() if value is not None}
    return ["party", str(data), *(word for name, value in given.items() for word in (f"--{name}", value))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"certificate": None}, "--certificate ca.crt and --node-key FILE"),
        ({"node-key": None}, "--certificate ca.crt and --node-key FILE"),
        ({"server": "localhost"}, "--server: expected HOST:PORT"),
        ({"server": "https://localhost:9443"}, "--server: expected HOST:PORT"),
        ({"server": "localhost:99999"}, "--server: expected HOST:PORT"),
        ({"key": None}, "key"),
        ({"key": "missing"}, "missing: there is no such key file"),
        ({"algorithm": "sha256"}, "uses no key"),
        ({"digest-bytes": "3"}, "digest-bytes"),
        ({"identity": "record"}, "records"),
        ({"labels": "no such label"}, "no such label"),
        ({"device": "tpu"}, "tpu"),
        ({"data": "no such dataset"}, "no such dataset"),
        ({"node-key": "nowhere"}, "nowhere: cannot read this party's node key"),
        ({"certificate": "nowhere"}, "nowhere: cannot read the server's certificate"),
    ],
)
def test_a_party_is_told_at_once_what_is_wrong(made: Path, changes: dict[str, str | None], said: str) -> None:
    with pytest.raises(FedalcError) as error:
        run(*party(made, **changes))
    assert said in str(error.value)


@pytest.mark.parametrize(("given", "size"), [([], 96), (["--size", "64"], 64)])
def test_a_party_has_one_size_of_pictures(
    made: Path, given: list[str], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[PartySide] = []
    monkeypatch.setattr("fedalc.deployment.party.run_party", lambda side, say, patience: sides.append(side))
    run(*party(made), *given)
    assert picture_size(sides[0].settings) == size


@pytest.mark.parametrize("size", ["7", "1025"])
def test_sizes_that_no_server_can_ask_for(made: Path, size: str) -> None:
    result = CliRunner().invoke(app, ["deploy", *party(made), "--size", size])
    assert result.exit_code == 2 and "8<=x<=1024" in result.output


def test_files_taken_for_another_are_named(made: Path, tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match="not a certificate"):
        run(*party(made, certificate=str(made / "node")))
    with pytest.raises(FedalcError, match="not a party's private key"):
        run(*party(made, **{"node-key": str(made / "key")}))


def a_party(made: Path, tmp_path: Path, **more: str) -> PartySide:
    settings = {"data": str(made / "my data"), "key": str(made / "key"), **more}
    return PartySide(settings, "127.0.0.1:9443", made / "certificates" / "ca.crt", made / "node", tmp_path / "state")


def test_a_partys_command_line_has_no_settings_in_it(made: Path, tmp_path: Path) -> None:
    """Other users of a machine can see command lines, so these must not show the paths of data and key."""
    side = a_party(made, tmp_path)
    assert side.check().endswith("labels")
    command = side.command()
    assert command[command.index("--superlink") + 1] == "127.0.0.1:9443"
    assert command[command.index("--auth-supernode-private-key") + 1] == str(made / "node")
    assert command[command.index("--node-config") + 1] == str(tmp_path / "state" / "node.toml")
    assert "--insecure" not in command and "fedalc.deployment.supernode" in command
    assert not any(str(made / "key") in word or "my data" in word for word in command)
    assert "--any-app" not in command


@pytest.mark.parametrize(
    ("system", "how", "memory"),
    [
        ("linux", {"worker_memory_mb": 700}, "700"),
        ("linux", {}, str(psutil.virtual_memory().total // 4 >> 20)),
        ("linux", {"fresh_processes": True, "worker_memory_mb": 700}, None),
        ("linux", {"any_app": True}, None),
        ("darwin", {}, None),
    ],
)
def test_whether_a_party_keeps_its_worker(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, how: dict[str, Any], memory: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    command = replace(a_party(made, tmp_path), **how).command()
    assert ("--worker-memory-mb" in command) == (memory is not None)
    assert memory is None or command[-1] == memory


def test_a_server_that_is_not_there_is_waited_for(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `patience` used up, a refusal is an error."""
    said: list[str] = []
    side = a_party(made, tmp_path)
    refusing = "print('SuperNode'); print('Exit Code: 305'); raise SystemExit(1)"
    monkeypatch.setattr(PartySide, "command", lambda self: ["python3", "-c", refusing])
    with pytest.raises(FedalcError, match=r"refused this party: its node key is not registered .*node\.pub NAME"):
        run_party(side, said.append, patience=0)
    monkeypatch.setattr(
        PartySide, "command", lambda self: ["python3", "-c", "print('Exit Code: 9'); raise SystemExit(1)"]
    )
    with pytest.raises(FedalcError, match=r"(?s)ended unexpectedly.*Exit Code: 9"):
        run_party(side, said.append, patience=60)


def test_a_partys_state_is_its_own(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if everybody could read the folder before."""
    side = a_party(made, tmp_path)
    side.state.mkdir()
    side.state.chmod(0o755)
    monkeypatch.setattr(PartySide, "command", lambda self: ["true"])
    side.start().end()
    assert side.state.stat().st_mode & 0o777 == 0o700


def test_a_servers_command_line(tmp_path: Path) -> None:
    secured = Server(ServerState(tmp_path), Certificates(tmp_path / "c"), "0.0.0.0", 9443)
    command = secured.command()
    assert "--enable-supernode-auth" in command and "--insecure" not in command
    assert command[command.index("--ssl-keyfile") + 1] == str(tmp_path / "c" / "server.key")
    assert secured.own_address == "127.0.0.1:9443"
    assert Server(ServerState(tmp_path), None, "::", 1).own_address == "[::1]:1"
    assert Server(ServerState(tmp_path), None, "192.0.2.7", 1).own_address == "192.0.2.7:1"
    assert "--insecure" in Server(ServerState(tmp_path), None).command()


def test_a_servers_limits_reach_the_gate(tmp_path: Path) -> None:
    given = Server(ServerState(tmp_path), None, max_request_mb=3, max_reply_mb=7, max_connections=20).command()
    limits, in_memory, others = read_arguments(given)
    assert (limits, in_memory) == (Limits(3 * MIB, 7 * MIB, connections=20), False)
    assert "--insecure" in others and not any(word.startswith("--max") for word in others)
    assert read_arguments(Server(ServerState(tmp_path), None).command())[0] == Limits(), "the same defaults"
    assert read_arguments(Server(ServerState(tmp_path), None, messages_in_memory=True).command())[1]
    with pytest.raises(FedalcError, match="--max-request-mb 5 is more than --max-reply-mb 4"):
        run("server", "--insecure", "--state", str(tmp_path), "--max-request-mb", "5", "--max-reply-mb", "4")


def test_a_server_needs_certificates_or_says_so(tmp_path: Path) -> None:
    with pytest.raises(FedalcError, match="--certificates FOLDER, or --insecure"):
        run("server", "--state", str(tmp_path))
    with pytest.raises(FedalcError, match="not found; create it with"):
        run("server", "--certificates", str(tmp_path / "none"), "--state", str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", [["nodes"], ["run"], ["register", __file__, "a"]])
def test_without_a_server_one_is_told_to_start_it(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(FedalcError, match="no server has been started with this state folder"):
        run(*command, "--state", str(tmp_path / "state"))


def test_a_server_that_has_gone_is_named(tmp_path: Path) -> None:
    state = ServerState(tmp_path / 'it\'s a "state"')
    address = f"127.0.0.1:{free_port()}"
    state.write_connection(address, tmp_path / 'ca "x".crt')
    assert state.connection() == (address, tmp_path / 'ca "x".crt')
    state.write_connection(address, None)
    with pytest.raises(FedalcError, match=f"{address}: no server answers"):
        run("run", "--state", str(state.folder))


def test_parties_are_remembered_by_name(tmp_path: Path) -> None:
    state = ServerState(tmp_path)
    state.add_party("north", "17")
    state.add_party("it's south", "18446744073709551615")
    assert state.parties() == {"north": "17", "it's south": "18446744073709551615"}
    state.remove_party("north")
    assert list(state.parties()) == ["it's south"]
    with pytest.raises(FedalcError, match="'north' is registered; registered are: it's south"):
        run("unregister", "north", "--state", str(tmp_path))


def test_the_app_is_written_for_flowers_users(tmp_path: Path) -> None:
    run("app", str(tmp_path / "app"))
    assert sorted(file.name for file in (tmp_path / "app").iterdir()) == ["LICENSE", "README.md", "pyproject.toml"]
    with pytest.raises(FedalcError, match="already exists"):
        run("app", str(tmp_path / "app"))


def test_keys_and_certificates_say_who_gets_what(tmp_path: Path) -> None:
    said = run("certificates", str(tmp_path / "c"), "--host", "fl.example.org")
    assert "ca.crt: give this to every party" in said and "ca.key: signs later server certificates" in said
    said = run("certificates", str(tmp_path / "c"), "--host", "fl.example.org")
    assert "parties need nothing new" in said and "restart a running server" in said and "ca.key" not in said
    said = run("node-key", str(tmp_path / "node"))
    assert "keep it secret" in said and "fedalc deploy register node.pub NAME" in said


def test_data_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    data = make_demo(DemoSize(train=80, test=5, words=60))
    shares = split_by_labels(data.train, data.label_names, 3)
    assert sorted(name for _, names in shares for name in names) == sorted(
        name
        for name, times in zip(data.label_names, data.train.labels.getnnz(axis=0).tolist(), strict=True)
        if times > 0
    )
    for number, (held, names) in enumerate(shares):
        write_data(tmp_path / str(number), held, names)
        read, read_names = load_held(tmp_path / str(number))
        assert list(read_names) == names
        assert (read.features != held.features).nnz == 0 and (read.labels != held.labels).nnz == 0
