"""Check the options of `fedalc deploy run` at once, instead of minutes later in the server's app.

`options` has the keys of a run config (deployment/flower/run_config.py).
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
"""The options that may change when a run is resumed. All other settings come from its folder."""
_OPTIONS = {"num-parties": "parties", "num-server-rounds": "rounds", "settings": "config"}


def overrides_text(overrides: Sequence[str]) -> str:
    """Return one override per line, with a line break after each. Without it, a `;` in a single override would be a
    separator, as it is in the one-line form for `flwr run`."""
    return "".join(f"{override}\n" for override in overrides)


def new_run(options: Mapping[str, Any], out: Path, name: str | None) -> dict[str, Any]:
    """Return the run config of a new run. Its folder must not have a run yet."""
    from fedalc.deployment.flower.run_config import read_run_config
    from fedalc.runs.folder import Taken, check_folder

    _, settings = read_run_config(options, run_id=0)
    kind = "tuned" if settings.tuning.search else f"{settings.method}-{settings.preset}"
    name = name or settings.name or f"{kind}-s{settings.seed}"
    folder = (out / name).resolve()
    try:
        check_folder(folder, settings, resume=False, overwrite=False)
    except Taken:
        raise FedalcError(
            f"{folder}: already has a run; continue it (--resume {folder}) or choose another --name"
        ) from None
    return {**options, "run-folder": str(folder)}


def resumed_run(state: ServerState, folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run config to resume a run: its earlier options, changed by those given now."""
    from fedalc.deployment.flower.run_config import read_run_config
    from fedalc.runs.folder import check_folder, read_settings

    fixed = [f"--{_OPTIONS.get(key, key)}" for key in options if key not in WHEN_RESUMED]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: not with --resume; a resumed run keeps its folder and its settings")
    if not folder.is_dir():
        raise FedalcError(f"{folder}: no such run folder")
    check_folder(folder, read_settings(folder), resume=True, overwrite=False)
    earlier = state.submitted(folder)
    known = {} if earlier is None else {key: earlier.settings[key] for key in WHEN_RESUMED if key in earlier.settings}
    settings = {**known, **options, "run-folder": str(folder.resolve()), "resume": True}
    read_run_config(settings, run_id=0)
    return settings
