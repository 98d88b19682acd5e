"""Load a saved model: an encoder with class embeddings, or an oracle. torch is imported only when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedalc.core.arguments import as_path
from fedalc.core.atomic_files import previous
from fedalc.core.registry import ORACLES
from fedalc.core.tensor_folder import load_facts
from fedalc.errors import FedalcError, resuming
from fedalc.models.linear import load_linear
from fedalc.models.predicting import Predictor

if TYPE_CHECKING:
    from fedalc.models.trained import TrainedModel
    from fedalc.oracles import TrainedOracle

SMALL_FILE = 20_000_000  # bytes up to which importing torch takes longer than it saves


def load_model(
    folder: Path | str, device: str = "cpu", allow_secret_rows: bool = False
) -> TrainedModel | TrainedOracle:
    """Load a saved model of any kind. One with secret rows cannot score, so it is refused unless allowed."""
    from fedalc.models.trained import KIND, TrainedModel
    from fedalc.oracles import TrainedOracle

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
    return load_model(model_of(run), device)


def light_model(run: Path, file: Path | str, device: str) -> Predictor:
    """Return the same model to predict on a file: without torch if it is a linear one and the file is small."""
    folder = model_of(run)
    try:
        is_small = not Path(file).exists() or (Path(file).is_file() and Path(file).stat().st_size <= SMALL_FILE)
    except (OSError, ValueError):  # a text that is too long for a path
        is_small = True
    linear = load_linear(folder) if device == "cpu" and is_small else None
    if linear is not None:
        return linear
    from fedalc.core.devices import check_device

    check_device(device)
    return load_model(folder, device)


def model_of(run: Path) -> Path:
    """Return the folder of a run's model, or the folder itself if it is one of a model."""
    if not run.exists() and not previous(run).exists():
        raise FedalcError(f"{run}: no such folder; `fedalc runs` lists your runs")
    if (run / "config.toml").exists() and not (run / "model").is_dir():
        raise FedalcError(f"{run}: this run is not finished; resume it ({resuming(run)})")
    return run / "model" if (run / "model").is_dir() else run
