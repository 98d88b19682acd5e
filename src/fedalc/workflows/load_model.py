"""Load a saved model: an encoder with class embeddings, or an oracle."""

from __future__ import annotations

from pathlib import Path

from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import previous
from fedalc.core.registry import ORACLES
from fedalc.core.tensor_folder import load_facts
from fedalc.errors import FedalcError
from fedalc.models.trained import KIND, TrainedModel
from fedalc.oracles import TrainedOracle


def load_model(
    folder: Path | str, device: str = "cpu", allow_secret_rows: bool = False
) -> TrainedModel | TrainedOracle:
    """Load a saved model of any kind. One with secret rows cannot score, so it is refused unless allowed."""
    folder = as_path(folder, "folder")
    kind = load_facts(folder).get("kind", KIND)
    if kind == KIND:
        model = TrainedModel.load(folder, device)
        if not allow_secret_rows:
            model.check_rows()
        return model
    if not isinstance(kind, str) or kind not in ORACLES:
        raise FedalcError(f"{folder}: a model of kind {kind!r}; this version does not know it")
    return TrainedOracle.load(folder, ORACLES)


def finished_model(run: Path, device: str = "cpu") -> TrainedModel | TrainedOracle:
    """Load the model of a run folder, or of a model folder."""
    if not run.exists() and not previous(run).exists():
        raise FedalcError(f"{run}: no such folder; `fedalc runs` lists your runs")
    if (run / "config.toml").exists() and not (run / "model").is_dir():
        raise FedalcError(f"{run}: this run is not finished; continue it with: fedalc train --resume {run}")
    return load_model(run / "model" if (run / "model").is_dir() else run, device)
