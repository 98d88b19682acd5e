"""Settings: TOML files, `--set`, and option values that fedalc parses itself."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

from fedalc.config.resolve import experiment
from fedalc.errors import ConfigError
from tests.fuzz.harness import Reader
from tests.fuzz.mutate import changed
from tests.fuzz.registry import as_file, reader

TOKENS = (b"[methods.fedaws]\n", b"[encoder]\n", b"seed = ", b"\n[[a]]\n", b"a.b.c = 1\n", b"a." * 3000, b'"""', b"'''",
          b"1979-05-27T07:32:00Z", b"9999-99-99", b"0xdeadbeef", b"1_000", b"{a = 1}", b"[[[[", b"rounds")  # fmt: skip


def toml(value: Any) -> str:
    """Return a tree of tables as TOML; inner tables inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, float) and abs(value) == float("inf"):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, int) and abs(value) >= 10**30 and not isinstance(value, bool):
        return hex(abs(value))
    return '""' if value is None or isinstance(value, bytes) else json.dumps(value)


def changed_toml(tree: dict[str, Any], rng: Random) -> bytes:
    found = changed(tree, rng)
    items = found.items() if isinstance(found, dict) else [("a", found)]
    lines = (f"{json.dumps(str(key))} = {toml(value)}" for key, value in items)
    return "\n".join(lines).encode("utf-8", "replace")


@reader
def settings_toml() -> Reader:
    settings = experiment({"method": "fedalc", "dataset": "demo"})
    tree = json.loads(settings.model_dump_json(by_alias=True))
    few = b'method = "fedaws"\npreset = "demo"\nrounds = 5\n[encoder]\nname = "mlp"\n[methods.fedavg]\nseed = 3\n'
    seeds = [few, settings.to_toml().encode()]

    def make(_seed: bytes, rng: Random) -> bytes:
        return changed_toml(tree, rng)

    read = as_file("settings.toml", lambda file: experiment(file=file))
    return Reader("settings-toml", "a TOML file of settings (--config, config.toml)", seeds, read, make, TOKENS)


@reader
def override() -> Reader:
    seeds = [b"server.ema=0.9", b"regularizer.lambda=[1, 10]", b'encoder.name="mlp"', b"name=plain words", b"seed=1"]

    def read(data: bytes) -> object:
        return experiment({}, overrides=[data.decode("utf-8", "surrogateescape")])  # as sys.argv has it

    return Reader("override", "--set key=value", seeds, read, tokens=TOKENS)


@reader
def option_values() -> Reader:
    """Option values that fedalc parses itself: lists, seeds, memory, addresses."""
    from fedalc.cli.options import listed, listed_seeds
    from fedalc.core.blocks import read_budget
    from fedalc.deployment.party import check_address

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        kind, _, value = text.partition(" ")
        if kind == "server":
            check_address(value)
        elif kind == "seeds":
            listed_seeds(value)
        elif kind == "memory":
            try:
                read_budget(value)
            except ValueError as error:  # pydantic makes a ConfigError of it
                raise ConfigError(str(error)) from None
        else:
            listed(value, "--methods")

    seeds = [b"server host:9092", b"server [::1]:80", b"seeds 0,1,2", b"memory 1.5GiB", b"methods fedavg,fedalc"]
    return Reader("option-values", "values of command line options", seeds, read)


@reader
def run_config() -> Reader:
    """The settings that `flwr run` passes to the server's app."""
    from fedalc.deployment.flower.run_config import DEFAULTS, read_run_config

    tree = dict(DEFAULTS) | {"method": "fedalc", "set": "seed=1; rounds=5"}

    def read(data: bytes) -> object:
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            raise ConfigError("Flower's to refuse") from None
        return read_run_config(said if isinstance(said, dict) else {"method": said}, 1)

    def make(_seed: bytes, rng: Random) -> bytes:
        return _json(changed(tree, rng))

    return Reader("run-config", "a run's configuration from Flower", [_json(tree)], read, make)


@cache
def _tables() -> tuple[bytes, ...]:
    from fedalc.reproduction.table_spec import HOMES

    return tuple(path.read_bytes() for path in sorted(HOMES[1].glob("*/table.toml")))


@reader
def table_toml() -> Reader:
    from fedalc.reproduction.table_spec import Table
    from fedalc.reproduction.toml_files import read_toml, validated  # isort: skip

    read = as_file("table.toml", lambda file: validated(Table, {**read_toml(file), "folder": file.parent}, file))
    return Reader("table-toml", "table.toml of `fedalc reproduce`", _tables(), read, tokens=TOKENS)


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda other: other.decode("latin-1")).encode("utf-8", "replace")
