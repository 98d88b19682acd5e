"""The entry point of `fedalc`: loads plugins, runs the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from fedalc.cli.usage import usage_line
from fedalc.core.distributed import started_as
from fedalc.core.plugins import load_inherited_plugins, load_plugins, plugins_in
from fedalc.errors import FedalcError, Interrupted


def main() -> None:
    """Run a command. A FedalcError becomes one line and exit code 2, an interruption exit code 130."""
    # Threads that wait for work by spinning slow everything down on a shared machine. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _note(warnings.showwarning)
    try:
        load_inherited_plugins()
        load_plugins(plugins_in(sys.argv))
        from fedalc.cli.app import command_line  # after the plugins, so that help lists what they register

        code = command_line()(prog_name="fedalc", standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C, without a word
            _complain("stopped")
        sys.exit(code if isinstance(code, int) else 0)
    except FedalcError as error:
        stopped = isinstance(error, Interrupted)
        if not (stopped and _is_another()):
            _complain(f"stopped {error}" if stopped else f"error: {error}")
        sys.exit(130 if stopped else 2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _complain(f"error: {usage_line(error)}")
        sys.exit(2)
    except click.Abort:  # the end of standard input, at a question
        _complain("stopped")
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
    except OSError as error:  # no room on the disk, no right to write there, …
        _complain(f"error: {error.filename or 'output'}: {error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _complain("stopped")
        sys.exit(130)


def _note(otherwise: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints user warnings as one line, without the place in the code."""

    def show(message: Any, category: type[Warning], *where: Any, **how: Any) -> None:
        if category is not UserWarning:
            otherwise(message, category, *where, **how)
            return
        if _is_another():
            return  # the first process says the same
        Console(stderr=True).print(f"note: {message}", highlight=False, markup=False, soft_wrap=True)

    return show


def _is_another() -> bool:
    """Return whether this is one of several processes, but not the first."""
    return started_as().rank > 0


def _complain(line: str) -> None:
    Console(stderr=True).print(line, style="red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
