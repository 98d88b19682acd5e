"""Load a user's own modules (`--plugin`), so that the methods, encoders, formats, metrics and callbacks that they
register have names on the command line."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path

from fedalc.errors import FedalcError

VARIABLE = "FEDALC_PLUGINS"  # for the processes that a command starts: paths and module names, separated as in PATH


def load_plugins(plugins: Iterable[str]) -> None:
    """Load each plugin, a Python file or the name of a module, once. Processes started from now on load them too."""
    loaded = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    for plugin in plugins:
        path = Path(plugin)
        is_file = path.suffix == ".py" or path.is_file()
        name = str(path.resolve()) if is_file else plugin
        _load_file(path) if is_file else _load_module(plugin)
        loaded += [] if name in loaded else [name]
    if loaded:
        os.environ[VARIABLE] = os.pathsep.join(loaded)


def load_inherited_plugins() -> None:
    """Load the plugins of the command that started this process."""
    load_plugins([part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part])


def plugins_in(arguments: Sequence[str]) -> list[str]:
    """Return the values of --plugin among command-line arguments.

    >>> plugins_in(["train", "--plugin", "a.py", "--plugin=b.py"])
    ['a.py', 'b.py']
    """
    found = [word.partition("=")[2] for word in arguments if word.startswith("--plugin=")]
    return [value for option, value in pairwise(arguments) if option == "--plugin"] + found


def _load_file(path: Path) -> None:
    name = f"fedalc_plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise FedalcError(f"--plugin {path}: there is no such file")
    spec = spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise FedalcError(f"--plugin {path}: is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        _explain(str(path), error)


def _load_module(name: str) -> None:
    if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as python -m has it
    try:
        import_module(name)
    except BaseException as error:
        _explain(name, error)


def _explain(plugin: str, error: BaseException) -> None:
    """Say what went wrong in a plugin, and in which line."""
    if isinstance(error, FedalcError | KeyboardInterrupt):
        raise error
    line = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, ModuleNotFoundError | SyntaxError) else f" ({line.filename}:{line.lineno})"
    raise FedalcError(f"--plugin {plugin} cannot be loaded: {type(error).__name__}: {error}{where}") from error
