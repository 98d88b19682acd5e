"""`fedalc deploy …`: run a server and parties on separate machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedalc.cli.options import absolute_weights
from fedalc.core.registry import METHODS
from fedalc.errors import ConfigError, FedalcError

app = typer.Typer(
    help="Train with real parties on separate machines, over Flower. Guide: docs/deployment.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

State = Annotated[Path, typer.Option("--state", help="the server's state folder: database, registered parties, logs")]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", help="ca.crt from the server's operator, to verify the server")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="no encryption, no authentication; for trials only")]
_SERVER_STATE = Path("fedalc-server")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="folder for the files; if it has ca.crt and ca.key, renew server.crt")],
    host: Annotated[list[str], typer.Option(help="name or address that parties use to reach the server; repeatable")],
    days: Annotated[
        int, typer.Option(min=1, help="validity of the server certificate in days; the authority: ten years")
    ] = 365,
) -> None:
    """Make a certificate authority and a server certificate, with which parties verify the server.

    Run it again to renew the server certificate with the same authority. Parties keep their ca.crt.
    """
    from fedalc.deployment.certificates import Certificates, make_certificates

    renews = Certificates(folder).authority.exists()
    made = make_certificates(folder, host, days)
    say = _sayer()
    if renews:
        say(f"{made.authority}: unchanged; parties need nothing new")
    else:
        say(f"{made.authority}: give this to every party; it is not secret")
    say(f"{made.server}, {made.server_key}: for the server (fedalc deploy server --certificates {folder})")
    if renews:
        say("restart a running server to use them; the old ones are kept as *.old")
    else:
        say(f"{made.authority_key}: signs later server certificates; keep it secret, best on another machine")


@app.command("node-key")
def node_key(file: Annotated[Path, typer.Argument(help="file for the private key; never overwritten")]) -> None:
    """Make a party's key pair, with which the server authenticates it."""
    from fedalc.deployment.node_keys import make_node_key

    public = make_node_key(file)
    say = _sayer()
    say(f"{file}: this party's private key; keep it secret")
    say(f"{public}: send this to the server's operator (fedalc deploy register {public.name} NAME)")


@app.command()
def server(
    certificates: Annotated[
        Path | None, typer.Option(help="folder made by `fedalc deploy certificates` (ca.crt, server.crt, server.key)")
    ] = None,
    insecure: Insecure = False,
    host: Annotated[str, typer.Option(help="address to listen on")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9443,
    state: State = _SERVER_STATE,
    max_request_mb: Annotated[int, typer.Option(min=1, help="largest single request of a party, in MiB")] = 64,
    max_reply_mb: Annotated[int, typer.Option(min=1, help="largest reply of a party to one question, in MiB")] = 1024,
    max_connections: Annotated[int, typer.Option(min=10, help="limit of open connections, from all addresses")] = 1000,
    messages_in_memory: Annotated[
        bool, typer.Option("--messages-in-memory", help="keep no message on disk: quicker rounds, more memory")
    ] = False,
) -> None:
    """Run the server in the foreground: it accepts registered parties, and executes `fedalc deploy run`."""
    from fedalc.deployment.certificates import Certificates
    from fedalc.deployment.server import Server, run_server
    from fedalc.deployment.state import ServerState

    if (certificates is None) != insecure:
        raise ConfigError("give --certificates FOLDER, or --insecure for a trial on one machine")
    secured = None if certificates is None else Certificates(certificates)
    if max_request_mb > max_reply_mb:
        raise ConfigError(f"--max-request-mb {max_request_mb} is more than --max-reply-mb {max_reply_mb}")
    limits = (max_request_mb, max_reply_mb, max_connections)
    run_server(Server(ServerState(state), secured, host, port, *limits, messages_in_memory), _sayer())


@app.command()
def register(
    key: Annotated[Path, typer.Argument(help="the party's public key, FILE.pub from `fedalc deploy node-key FILE`")],
    name: Annotated[str, typer.Argument(help="a name for the party")],
    state: State = _SERVER_STATE,
) -> None:
    """Register a party. Run it on the server's machine while the server runs."""
    from fedalc.deployment.node_keys import check_public_key
    from fedalc.deployment.state import ServerState

    server_state = ServerState(state)
    if name in server_state.parties():
        raise FedalcError(f"{name!r} is already registered; choose another name, or `fedalc deploy unregister` it")
    flower = server_state.flower
    check_public_key(key)
    node = flower.register(key)
    server_state.add_party(name, node)
    _sayer()(f"registered {name} as node {node}")


@app.command()
def unregister(
    name: Annotated[str, typer.Argument(help="the party's name, as registered")], state: State = _SERVER_STATE
) -> None:
    """Remove a party."""
    from fedalc.deployment.state import ServerState

    server_state = ServerState(state)
    if name not in server_state.parties():
        raise FedalcError(
            f"no party {name!r} is registered; registered are: {', '.join(server_state.parties()) or 'none'}"
        )
    server_state.flower.unregister(server_state.parties()[name])
    server_state.remove_party(name)
    _sayer()(f"removed {name}")


@app.command()
def nodes(state: State = _SERVER_STATE) -> None:
    """List the registered parties and whether they are connected."""
    from fedalc.deployment.state import ServerState
    from fedalc.report.plain_tables import PlainColumn, plain_table

    server_state = ServerState(state)
    names = {node: name for name, node in server_state.parties().items()}
    found = server_state.flower.nodes()
    statuses = ["never seen" if status == "registered" else status for status in found.values()]
    columns = [
        PlainColumn("party", [names.get(node, "?") for node in found], wraps=True),
        PlainColumn("node", list(found), leave_out=1),
        PlainColumn("status", statuses),
    ]
    console = Console(highlight=False)
    console.print(plain_table(columns, console.width))


@app.command()
def party(
    data: Annotated[
        str, typer.Argument(help="this party's data: a file, a folder with a train file, or a dataset's name")
    ],
    server: Annotated[str, typer.Option(help="the server's HOST:PORT")],
    key: Annotated[
        Path | None, typer.Option(help="the key that all parties share; one of them makes it: fedalc key new FILE")
    ] = None,
    certificate: Certificate = None,
    node_key: Annotated[
        Path | None, typer.Option(help="this party's private key, from `fedalc deploy node-key`")
    ] = None,
    insecure: Insecure = False,
    labels: Annotated[
        str | None, typer.Option(help="names of this party's labels, comma-separated (default: all labels in its data)")
    ] = None,
    least_records: Annotated[
        int | None,
        typer.Option(
            min=1, help="leave out labels of fewer records, copies and held-out ones included (default: none)"
        ),
    ] = None,
    client: Annotated[str | None, typer.Option(help="a name for this party that the server sees")] = None,
    identity: Annotated[
        str, typer.Option(help="when two instances are the same: content, record (with --records), embedding")
    ] = "content",
    records: Annotated[
        Path | None, typer.Option(help="file with the record name of each instance, one per line")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="hash algorithm, as in fedalc collect client")] = "hmac-sha256",
    digest_bytes: Annotated[int, typer.Option(help="length of a digest, 8 to 64")] = 16,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")] = None,
    share_names: Annotated[bool, typer.Option("--share-names", help="send the names of labels to the server")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="folder of datasets (default: $FEDALC_DATA, ./data)")] = None,
    pretrained: Annotated[
        list[str] | None,
        typer.Option(
            "--pretrained",
            help="this party's copy of the frozen network that runs are on: a folder, file or package:NAME; repeatable",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=8,
            max=1024,
            help="side of pictures in pixels (default: 96, or that of --pretrained); makes small copies now, and "
            "refuses a server with another images.size",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="local port for the party's own processes (default: any free one)")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="folder for log and settings (default: NODEKEY.party)")] = None,
    fewest: Annotated[
        int | None,
        typer.Option(min=1, help="fewest records of a label that have to contribute (default: 8; 1: no check)"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="set a limit on what the server may ask, e.g. client.epochs=500; repeatable"),
    ] = None,
    without_run_id: Annotated[
        bool, typer.Option("--without-run-id", help="also answer runs without a run id, begun with fedalc 0.1")
    ] = False,
    require_secure_sums: Annotated[
        bool, typer.Option("--require-secure-sums", help="take part only in runs with secure sums")
    ] = False,
    no_digests: Annotated[
        bool, typer.Option("--no-digests", help="send no digests of records: refuse runs that join them")
    ] = False,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="do not tell which features the records have: all rows of θ travel")
    ] = False,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            help="take part only in runs with a private model, while all of them together spend at most this ε",
        ),
    ] = None,
    any_app: Annotated[
        bool, typer.Option("--any-app", help="run any code that the server sends (default: installed code only)")
    ] = False,
    fresh_processes: Annotated[
        bool, typer.Option("--fresh-processes", help="start a new process for every message; rounds take seconds more")
    ] = False,
    worker_memory: Annotated[
        int | None,
        typer.Option(
            min=1, help="memory in MiB that the party's process may keep between messages (default: a quarter)"
        ),
    ] = None,
    patience: Annotated[float, typer.Option(min=0, help="seconds to retry when the server refuses this party")] = 90.0,
) -> None:
    """Run a party in the foreground: check its data and keys, then work for the server until Ctrl-C."""
    from fedalc.deployment.party import PartySide, run_party

    if (certificate is None) != insecure or (node_key is None) != insecure:
        raise ConfigError("give --certificate ca.crt and --node-key FILE, or --insecure for a trial on one machine")
    folder = state or (Path("fedalc-party") if node_key is None else node_key.with_name(f"{node_key.name}.party"))
    side = PartySide(
        settings=_given(
            data=_absolute(data),
            key=_absolute(key),
            labels=labels,
            least_records=least_records,
            client=client,
            identity=identity,
            records=_absolute(records),
            algorithm=algorithm,
            device=device,
            share_names=share_names or None,
            digest_bytes=digest_bytes,
            data_dir=_absolute(data_dir),
            size=size,
            pretrained="\n".join(map(absolute_weights, pretrained)) if pretrained else None,
            fewest=fewest,
            allow=";".join(allow) if allow else None,
            without_run_id=without_run_id or None,
            require_secure_sums=require_secure_sums or None,
            no_digests=no_digests or None,
            all_rows=all_rows or None,
            epsilon_budget=epsilon_budget,
            state=str(folder.resolve()),
        ),
        server=server,
        certificate=certificate,
        node_key=node_key,
        state=folder,
        port=port,
        any_app=any_app,
        fresh_processes=fresh_processes,
        worker_memory_mb=worker_memory,
    )
    say = _sayer()
    say(side.check())
    run_party(side, say, patience)


@app.command("app")
def app_(folder: Annotated[Path, typer.Argument(help="new folder to write")]) -> None:
    """Write fedalc's Flower app into a folder, for `flwr run FOLDER`."""
    from shutil import copytree

    from fedalc.deployment.flower_programs import APP

    if folder.exists():
        raise FedalcError(f"{folder}: already exists; choose a new folder")
    copytree(APP, folder)
    _sayer()(f"{folder}: run it with `flwr run {folder} NAME --stream`; pyproject.toml lists its settings")


@app.command()
def run(
    state: State = _SERVER_STATE,
    method: Annotated[str | None, typer.Option(help=", ".join(METHODS))] = None,
    preset: Annotated[str | None, typer.Option(help="strong, paper, …")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="communication rounds (default: the preset's)")] = None,
    config: Annotated[Path | None, typer.Option(help="settings from a TOML file")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting as key=value; repeatable")] = None,
    pretrained: Annotated[
        list[str] | None,
        typer.Option(
            "--pretrained", help="train on the features of this frozen network, of which each party has a copy"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="same seed, settings, parties and run id: same result")
    ] = None,
    parties: Annotated[
        int | None, typer.Option(min=1, help="start when this many parties are connected (default: 2)")
    ] = None,
    min_parties: Annotated[int | None, typer.Option(min=1, help="stop if fewer parties are left (default: 2)")] = None,
    held_out: Annotated[
        str | None, typer.Option(help="evaluate on this data at the server (default: at the parties)")
    ] = None,
    held_out_share: Annotated[
        float | None,
        typer.Option(help="without --held-out: share of instances that parties keep out of training (default: 0.1)"),
    ] = None,
    rank_held_out: Annotated[
        str | None,
        typer.Option(
            help="parties rank all labels for the instances they keep out, to keep the best round: on, off, or auto, "
            "which is on if W is fixed (default). It shows every party all rows of W (docs/deployment.md)"
        ),
    ] = None,
    tune: Annotated[
        bool | None,
        typer.Option(
            "--tune/--no-tune",
            help="choose loss, penalty and features on the instances that parties keep out, then train (default: no)",
        ),
    ] = None,
    secure_sums: Annotated[
        bool | None,
        typer.Option(
            "--secure-sums/--no-secure-sums",
            help="mask what parties send, so that the server learns sums over three or more of them only (default: "
            "with --parties 3 or more and a fixed W). Without, it sees each party's change of θ (docs/secure-sums.md)",
        ),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(
            help="how the server learns about label sets: join, all of them; sums, set sizes only, for methods that "
            "need no pairs of labels; psi, pairs of labels only, for few labels (default: sums with secure sums, where "
            "it fits, otherwise join; docs/set-sizes.md)"
        ),
    ] = None,
    wait: Annotated[float | None, typer.Option(help="seconds to wait for the parties (default: 600)")] = None,
    round_timeout: Annotated[
        float | None, typer.Option(help="seconds to wait for a party's answer (default: 600)")
    ] = None,
    max_norm: Annotated[
        float | None, typer.Option(help="refuse longer changes of θ (default: 100 times the usual length)")
    ] = None,
    max_labels_per_party: Annotated[
        int | None, typer.Option(min=1, help="leave out a party that claims more labels (default: 10000)")
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            help="digests and pseudonyms are valid for this run id only; use a new one per run (default: random)"
        ),
    ] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(min=1e-6, help="refuse a run if all runs of this server together would exceed this ε"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of the run folder (default: the settings' name, or method-preset-seed)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for run folders (default: runs)")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="continue the stopped run in this folder, with its own settings; only --parties, --min-parties, "
            "--held-out, --wait, --round-timeout, --max-norm, --max-labels-per-party, --epsilon-budget may be given"
        ),
    ] = None,
    app_folder: Annotated[Path | None, typer.Option("--app", help="another Flower app in place of fedalc's")] = None,
) -> None:
    """Train with the connected parties. Run it on the server's machine while the server runs.

    Each party's change is clipped to the median length of all parties' changes. Other rules: --set
    server.aggregation=mean, median, trimmed-mean or multi-krum (docs/robust.md).
    """
    from fedalc.deployment.flower_programs import APP, require_flower
    from fedalc.deployment.request import new_run, overrides_text, resumed_run
    from fedalc.deployment.state import ServerState
    from fedalc.deployment.submission import listen, submit

    require_flower()
    server_state = ServerState(state)
    changes = list(set_ or ())
    if pretrained:
        changes.append(f"encoder.pretrained={json.dumps(list(map(absolute_weights, pretrained)))}")
    options = _given(
        num_server_rounds=rounds, method=method, preset=preset, settings=_absolute(config),
        set=overrides_text(changes) if changes else None, seed=seed, held_out=_absolute(held_out), num_parties=parties,
        min_parties=min_parties, held_out_share=held_out_share, wait=wait, round_timeout=round_timeout,
        rank_held_out=rank_held_out, tune=tune,
        secure_sums=None if secure_sums is None else "on" if secure_sums else "off", collection=collection,
        max_norm=max_norm, max_labels_per_party=max_labels_per_party, run_id=run_id,
        epsilon_budget=epsilon_budget, privacy_ledger=str(server_state.privacy_ledger),
    )  # fmt: skip
    if resume is None:
        settings = new_run(options, out or Path("runs"), name)
    else:
        settings = resumed_run(server_state, resume.resolve(), {**options, **_given(name=name, out=out)})
    number = submit(server_state, settings, app_folder or APP)
    say = _sayer()
    say(f"run {number}, into {settings['run-folder']}")
    listen(server_state, number, Path(settings["run-folder"]), say)


@app.command()
def demo() -> None:
    """Run a server and three parties as real processes on this machine, with TLS and keys (about two minutes).

    The result is compared with a training in one process. Everything is in a temporary folder.
    """
    from fedalc.deployment.flower_programs import require_flower

    require_flower()
    from fedalc.deployment.demo import run_demo

    run_demo()


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, under their kebab-case names in run and node configs."""
    return {name.replace("_", "-"): value for name, value in options.items() if value is not None}


def _absolute(path: str | Path | None) -> str | None:
    """Return an absolute path, because a process in another folder reads it. Other text is a dataset's name."""
    if path is None:
        return None
    return str(Path(path).resolve()) if isinstance(path, Path) or Path(path).exists() else path


def _sayer() -> Any:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    return lambda line: console.print(line, markup=False)
