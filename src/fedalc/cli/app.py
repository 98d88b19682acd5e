"""The commands, put together. Each parses, calls and prints; it imports what does the work when it is called."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import click
import typer

from fedalc.cli.audit import audit
from fedalc.cli.collect import collect_app, key_app
from fedalc.cli.compare import compare
from fedalc.cli.data import app as data_app
from fedalc.cli.deploy import app as deploy_app
from fedalc.cli.evaluate import calibrate, evaluate
from fedalc.cli.export import export
from fedalc.cli.listing import list_, methods
from fedalc.cli.predict import predict
from fedalc.cli.privacy import privacy
from fedalc.cli.report import report
from fedalc.cli.reproduce import reproduce
from fedalc.cli.runs import app as runs_app
from fedalc.cli.serve import serve
from fedalc.cli.settings import settings
from fedalc.cli.sweep import sweep
from fedalc.cli.train import train
from fedalc.cli.verify import enrol, unenrol, verify
from fedalc.core.distributed import started_as
from fedalc.errors import FedalcError


def _keep_the_help_of_arguments() -> None:
    """Flower asks for typer <0.21, whose arguments lose their help with click 8.4 and later."""
    from typer.core import TyperArgument

    make = TyperArgument.__init__

    def make_with_help(self: TyperArgument, *words: Any, help: str | None = None, **options: Any) -> None:
        make(self, *words, help=help, **options)
        self.help = help

    TyperArgument.__init__ = make_with_help  # type: ignore[method-assign]


_keep_the_help_of_arguments()
app = typer.Typer(
    help="Federated learning when every client has only positive examples of its own label.\n\n"
    "Start with: fedalc train --dataset demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedalc {version('fedalc')}")
        raise typer.Exit


@app.callback()
def _several_processes(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    command = context.invoked_subcommand
    if command not in (None, "train") and started_as().count > 1:
        raise FedalcError(f"{command} runs in one process: start it without torchrun, which is for `fedalc train`")


TRAIN, USE, LOOK, PARTIES = "Train", "Use a model", "Look things up", "Parties and privacy"
#: The commands by their panel of `fedalc --help`, in order. A panel shows its groups of commands after the others.
COMMANDS = {
    TRAIN: (train, compare, sweep, reproduce),
    USE: (predict, verify, enrol, unenrol, evaluate, calibrate, export, serve),
    LOOK: (methods, settings, list_, report),
    PARTIES: (audit, privacy),
}
GROUPS = {"data": (LOOK, data_app), "runs": (LOOK, runs_app)}
GROUPS |= {"key": (PARTIES, key_app), "collect": (PARTIES, collect_app), "deploy": (PARTIES, deploy_app)}

for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_"), rich_help_panel=panel)(command)
app.command("remove", hidden=True)(unenrol)
for name, (panel, group) in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel=panel)


@cache
def command_line() -> click.Command:
    """Return `fedalc` with the option --plugin for every command. `main` loads the plugins before it parses."""
    fedalc = typer.main.get_command(app)
    _add_plugin_option(fedalc)
    return fedalc


def _add_plugin_option(command: click.Command) -> None:
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        _add_plugin_option(child)
    help_ = "Python file or module that registers methods, encoders, … of your own (docs/extending.md)"
    command.params.append(click.Option(["--plugin"], multiple=True, expose_value=False, help=help_, metavar="FILE"))
