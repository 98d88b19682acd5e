"""`fedalc deploy …`: parties and a server on machines of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedalc.core.registry import METHODS
from fedalc.errors import ConfigError, FedalcError

app = typer.Typer(
    help="Parties and a server on machines of their own, over Flower. docs/deployment.md takes you through it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

State = Annotated[Path, typer.Option("--state", help="the server's folder: database, registered parties, logs")]
Certificate = Annotated[Path | None, typer.Option("--certificate", help="the server's ca.crt")]
Insecure = Annotated[bool, typer.Option("--insecure", help="no encryption and no authentication: trials only")]
_SERVER_STATE = Path("fedalc-server")


@app.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="where they go; with ca.crt and ca.key in it: for a new server.crt")],
    host: Annotated[list[str], typer.Option(help="the server's name or address, as parties call it; repeatable")],
    days: Annotated[int, typer.Option(min=1, help="how long the server's is valid; the authority: ten years")] = 365,
) -> None:
    """A certificate authority and a server certificate, so that parties know whom they talk to.

    Again, before the server certificate ends: a new one by the same authority. Parties keep their ca.crt.
    """
    from fedalc.deployment.certificates import Certificates, make_certificates

    known = Certificates(folder).authority.exists()
    made = make_certificates(folder, host, days)
    say = _sayer()
    if known:
        say(f"{made.authority}: as before; parties need nothing new")
    else:
        say(f"{made.authority}: give this to every party; it is not secret")
    say(f"{made.server}, {made.server_key}: for the server (fedalc deploy server --certificates {folder})")
    if known:
        say("a server that is running takes them when it is started again; those before are kept as *.old")
    else:
        say(f"{made.authority_key}: signs further server certificates; keep it to yourself, best on another machine")


@app.command("node-key")
def node_key(file: Annotated[Path, typer.Argument(help="where it goes; never overwritten")]) -> None:
    """A party's key pair, by which the server knows it."""
    from fedalc.deployment.node_keys import make_node_key

    public = make_node_key(file)
    say = _sayer()
    say(f"{file}: this party's secret; nobody else gets it")
    say(f"{public}: give this to the server's side (fedalc deploy register {public.name} NAME)")


@app.command()
def server(
    certificates: Annotated[
        Path | None, typer.Option(help="the folder from `fedalc deploy certificates` (ca.crt, server.crt, server.key)")
    ] = None,
    insecure: Insecure = False,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9443,
    state: State = _SERVER_STATE,
    max_request_mb: Annotated[int, typer.Option(min=1, help="the largest single request of a party, in MiB")] = 64,
    max_reply_mb: Annotated[int, typer.Option(min=1, help="the most a party may send for one question, in MiB")] = 1024,
    max_connections: Annotated[int, typer.Option(min=10, help="open connections at once, of everyone")] = 1000,
) -> None:
    """The server, in the foreground: lets registered parties in, and runs what `fedalc deploy run` submits."""
    from fedalc.deployment.certificates import Certificates
    from fedalc.deployment.server import Server, run_server
    from fedalc.deployment.state import ServerState

    if (certificates is None) != insecure:
        raise ConfigError("give --certificates FOLDER, or --insecure for a trial on one machine")
    secured = None if certificates is None else Certificates(certificates)
    if max_request_mb > max_reply_mb:
        raise ConfigError(f"--max-request-mb {max_request_mb} is more than --max-reply-mb {max_reply_mb}")
    limits = (max_request_mb, max_reply_mb, max_connections)
    run_server(Server(ServerState(state), secured, host, port, *limits), _sayer())


@app.command()
def register(
    key: Annotated[Path, typer.Argument(help="the party's public key: FILE.pub of its `fedalc deploy node-key FILE`")],
    name: Annotated[str, typer.Argument(help="what to call the party here")],
    state: State = _SERVER_STATE,
) -> None:
    """Let a party in. On the server's machine, while the server runs."""
    from fedalc.deployment.node_keys import check_public_key
    from fedalc.deployment.state import ServerState

    known = ServerState(state)
    if name in known.parties():
        raise FedalcError(f"{name!r} is registered already; choose another name, or `fedalc deploy unregister` it")
    flower = known.flower
    check_public_key(key)
    node = flower.register(key)
    known.add_party(name, node)
    _sayer()(f"{name} is registered, as node {node}")


@app.command()
def unregister(
    name: Annotated[str, typer.Argument(help="the party, as it was registered")], state: State = _SERVER_STATE
) -> None:
    """Let a party in no longer."""
    from fedalc.deployment.state import ServerState

    known = ServerState(state)
    if name not in known.parties():
        raise FedalcError(f"no party {name!r} is registered; there are: {', '.join(known.parties()) or 'none'}")
    known.flower.unregister(known.parties()[name])
    known.remove_party(name)
    _sayer()(f"{name} is registered no longer")


@app.command()
def nodes(state: State = _SERVER_STATE) -> None:
    """The registered parties, and whether they are there."""
    from fedalc.deployment.state import ServerState

    known = ServerState(state)
    names = {node: name for name, node in known.parties().items()}
    table = Table("party", "node", "status")
    for node, status in known.flower.nodes().items():
        table.add_row(names.get(node, "?"), node, "never seen" if status == "registered" else status)
    Console().print(table)


@app.command()
def party(
    data: Annotated[str, typer.Argument(help="what this party holds: a file, a folder with a train file, or a name")],
    server: Annotated[str, typer.Option(help="HOST:PORT")],
    key: Annotated[Path | None, typer.Option(help="the parties' key file (one makes it: fedalc key new FILE)")] = None,
    certificate: Certificate = None,
    node_key: Annotated[Path | None, typer.Option(help="this party's own key, from `fedalc deploy node-key`")] = None,
    insecure: Insecure = False,
    labels: Annotated[
        str | None, typer.Option(help="this party's labels, by name, comma-separated (default: those in its data)")
    ] = None,
    client: Annotated[str | None, typer.Option(help="what the server may call this party")] = None,
    identity: Annotated[
        str, typer.Option(help="what makes two instances the same: content, record (with --records), embedding")
    ] = "content",
    records: Annotated[Path | None, typer.Option(help="the instances' record names, one per line")] = None,
    algorithm: Annotated[str, typer.Option(help="hmac-sha256, … (as in fedalc collect client)")] = "hmac-sha256",
    digest_bytes: Annotated[int, typer.Option(help="length of a digest, 8 to 64")] = 16,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …")] = None,
    share_names: Annotated[bool, typer.Option("--share-names", help="tell the server the labels' names")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="where datasets live (default: $FEDALC_DATA, ./data)")] = None,
    size: Annotated[
        int,
        typer.Option(
            min=8,
            max=1024,
            help="of pictures, the side in pixels: small copies are made now, and a server that asks for others "
            "(images.size) is refused",
        ),
    ] = 96,
    port: Annotated[int | None, typer.Option(help="of this machine, for the party's own processes")] = None,
    state: Annotated[Path | None, typer.Option(help="a folder for log and settings (default: NODEKEY.party)")] = None,
    fewest: Annotated[
        int | None,
        typer.Option(min=1, help="records of a label that have to contribute to an answer (default: 8; 1: no check)"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="raise a bound on what the server may ask, as client.epochs=500; repeatable"),
    ] = None,
    without_run_id: Annotated[
        bool, typer.Option("--without-run-id", help="answer for a run that began with fedalc 0.1, without a run id")
    ] = False,
    any_app: Annotated[
        bool, typer.Option("--any-app", help="run whatever code the server sends (default: installed code only)")
    ] = False,
    patience: Annotated[float, typer.Option(min=0, help="seconds to go on when the server refuses")] = 90.0,
) -> None:
    """A party's whole side, in the foreground: checks data and keys, then works for the server until Ctrl-C."""
    from fedalc.deployment.party import PartySide, run_party

    if (certificate is None) != insecure or (node_key is None) != insecure:
        raise ConfigError("give --certificate ca.crt and --node-key FILE, or --insecure for a trial on one machine")
    folder = state or (Path("fedalc-party") if node_key is None else node_key.with_name(f"{node_key.name}.party"))
    side = PartySide(
        settings=_given(
            data=_absolute(data),
            key=_absolute(key),
            labels=labels,
            client=client,
            identity=identity,
            records=_absolute(records),
            algorithm=algorithm,
            device=device,
            share_names=share_names or None,
            digest_bytes=digest_bytes,
            data_dir=_absolute(data_dir),
            size=size,
            fewest=fewest,
            allow=";".join(allow) if allow else None,
            without_run_id=without_run_id or None,
            state=str(folder.resolve()),
        ),
        server=server,
        certificate=certificate,
        node_key=node_key,
        state=folder,
        port=port,
        any_app=any_app,
    )
    say = _sayer()
    say(side.check())
    run_party(side, say, patience)


@app.command("app")
def app_(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write fedalc's Flower app into a folder, for `flwr run FOLDER`."""
    from shutil import copytree

    from fedalc.deployment.flower_programs import APP

    if folder.exists():
        raise FedalcError(f"{folder}: is there already; name a new folder")
    copytree(APP, folder)
    _sayer()(f"{folder}: run it with `flwr run {folder} NAME --stream`; pyproject.toml lists its settings")


@app.command()
def run(
    state: State = _SERVER_STATE,
    method: Annotated[str | None, typer.Option(help=", ".join(METHODS))] = None,
    preset: Annotated[str | None, typer.Option(help="strong, paper, …")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="communication rounds (default: the preset's)")] = None,
    config: Annotated[Path | None, typer.Option(help="settings from a TOML file")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any setting, as key=value; repeatable")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="same seed, settings and parties: same result")] = None,
    parties: Annotated[int | None, typer.Option(min=1, help="start when so many are there (default: 2)")] = None,
    min_parties: Annotated[int | None, typer.Option(min=1, help="go on with at least so many (default: 2)")] = None,
    held_out: Annotated[
        str | None, typer.Option(help="data for the evaluation, here at the server (default: at the parties)")
    ] = None,
    held_out_share: Annotated[
        float | None, typer.Option(help="of its instances, what a party keeps out of training then (default: 0.1)")
    ] = None,
    wait: Annotated[float | None, typer.Option(help="seconds to wait for the parties (default: 600)")] = None,
    round_timeout: Annotated[float | None, typer.Option(help="seconds for a party's answer (default: 600)")] = None,
    max_norm: Annotated[float | None, typer.Option(help="leave out replies that change more than this")] = None,
    max_labels_per_party: Annotated[
        int | None, typer.Option(min=1, help="leave out a party that claims more labels (default: 10000)")
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(help="digests and pseudonyms are of this run alone; a new one for each run (default: random)"),
    ] = None,
    epsilon_budget: Annotated[
        float | None,
        typer.Option(min=1e-6, help="refuse a run that would bring what all runs of this server spent above this ε"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="the run folder's name (default: the settings' name, or method-preset-seed)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="where run folders go (default: runs)")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="go on with a stopped run, from its folder: with its own settings, and with --parties, "
            "--min-parties, --held-out, --wait, --round-timeout, --max-norm, --max-labels-per-party, --epsilon-budget "
            "as before or as given now"
        ),
    ] = None,
    app_folder: Annotated[Path | None, typer.Option("--app", help="another Flower app than fedalc's own")] = None,
) -> None:
    """Train with the parties that are connected. On the server's machine, while the server runs.

    A party's change is cut to the median length of all parties' changes. Other rules: --set server.aggregation=mean,
    median, trimmed-mean or multi-krum (docs/robust.md).
    """
    from fedalc.deployment.flower_programs import APP, require_flower
    from fedalc.deployment.request import new_run, overrides_text, resumed_run
    from fedalc.deployment.state import ServerState
    from fedalc.deployment.submission import listen, submit

    require_flower()
    known = ServerState(state)
    asked = _given(
        num_server_rounds=rounds, method=method, preset=preset, settings=_absolute(config),
        set=overrides_text(set_) if set_ else None, seed=seed, held_out=_absolute(held_out), num_parties=parties,
        min_parties=min_parties, held_out_share=held_out_share, wait=wait, round_timeout=round_timeout,
        max_norm=max_norm, max_labels_per_party=max_labels_per_party, run_id=run_id,
        epsilon_budget=epsilon_budget, privacy_ledger=str(known.privacy_ledger),
    )  # fmt: skip
    if resume is None:
        settings = new_run(asked, out or Path("runs"), name)
    else:
        settings = resumed_run(known, resume.resolve(), {**asked, **_given(name=name, out=out)})
    number = submit(known, settings, app_folder or APP)
    say = _sayer()
    say(f"run {number} into {settings['run-folder']}")
    listen(known, number, Path(settings["run-folder"]), say)


def _given(**options: Any) -> dict[str, Any]:
    """Those that were given, under the names that the apps know them by."""
    return {name.replace("_", "-"): value for name, value in options.items() if value is not None}


def _absolute(path: str | Path | None) -> str | None:
    """Another process reads it, in another folder. What is not a path here is a dataset's name."""
    if path is None:
        return None
    return str(Path(path).resolve()) if isinstance(path, Path) or Path(path).exists() else path


def _sayer() -> Any:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    return lambda line: console.print(line, markup=False)
