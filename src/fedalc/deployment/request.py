"""What `fedalc deploy run` asks for: refused here, at once, if it cannot be, and not minutes later by the server's app.

`asked` has the names that the app knows its settings by (deployment/flower/run_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedalc.deployment.state import ServerState
from fedalc.errors import ConfigError, FedalcError

WHEN_RESUMED = (
    "num-parties",
    "min-parties",
    "held-out",
    "wait",
    "round-timeout",
    "max-norm",
    "max-labels-per-party",
    "epsilon-budget",
    "privacy-ledger",
)
"""How a run is gone about may change on the way. What it trains may not: that is in its folder."""
_OPTIONS = {"num-parties": "parties", "num-server-rounds": "rounds", "settings": "config"}


def overrides_text(overrides: Sequence[str]) -> str:
    """One per line, and a line's end after each: so that a `;` in the only one is not taken for a separator, as it is
    in the one-line form that is written for `flwr run`."""
    return "".join(f"{override}\n" for override in overrides)


def new_run(asked: Mapping[str, Any], out: Path, name: str | None) -> dict[str, Any]:
    """With the folder it goes to, in which there must be nothing of anybody's."""
    from fedalc.deployment.flower.run_config import read_run_config
    from fedalc.runs.folder import Taken, check_folder

    _, settings = read_run_config(asked, run_id=0)
    name = name or settings.name or f"{settings.method}-{settings.preset}-s{settings.seed}"
    folder = (out / name).resolve()
    try:
        check_folder(folder, settings, resume=False, overwrite=False)
    except Taken:
        raise FedalcError(
            f"{folder}: there is a run here already; go on with it (--resume {folder}) or give this one another --name"
        ) from None
    return {**asked, "run-folder": str(folder)}


def resumed_run(state: ServerState, folder: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """As it was gone about before, with what is to be different now."""
    from fedalc.deployment.flower.run_config import read_run_config
    from fedalc.runs.folder import check_folder, read_settings

    fixed = [f"--{_OPTIONS.get(key, key)}" for key in asked if key not in WHEN_RESUMED]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: a resumed run keeps its folder and its settings; leave this out")
    if not folder.is_dir():
        raise FedalcError(f"{folder}: there is no such run folder")
    check_folder(folder, read_settings(folder), resume=True, overwrite=False)
    earlier = state.submitted(folder)
    known = {} if earlier is None else {key: earlier.settings[key] for key in WHEN_RESUMED if key in earlier.settings}
    settings = {**known, **asked, "run-folder": str(folder.resolve()), "resume": True}
    read_run_config(settings, run_id=0)
    return settings
