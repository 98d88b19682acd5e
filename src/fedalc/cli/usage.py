"""Wrong command lines: one line that says what was wrong, what comes close, and where to look."""

from __future__ import annotations

import difflib
import re

import click


def usage_line(error: click.ClickException) -> str:
    """Return the line to print for a command line that click refused."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "fedalc" if context is None else context.command_path
    unknown = re.match(r"No such command '([^']*)'", str(error.message))
    if unknown and context is not None and isinstance(context.command, click.Group):
        hint = did_you_mean(unknown[1], context.command.list_commands(context))
        return f"there is no command `{path} {unknown[1]}`{hint} `{path} --help` lists all"
    if isinstance(error, click.NoSuchOption):
        options = [] if context is None else [name for each in context.command.params for name in each.opts]
        hint = did_you_mean(error.option_name, [name for name in options if name.startswith("--")])
        return f"`{path}` has no option {error.option_name}{hint} `{path} --help` lists all"
    return f"{path}: {error.format_message().rstrip('.')}; see `{path} --help`"


def did_you_mean(given: str, known: list[str]) -> str:
    """Return "; did you mean …?" with the closest name, or only a semicolon."""
    close = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {close[0]}?" if close else ";"
