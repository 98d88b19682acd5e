"""Enrol a person in a trained model without training the others again, and remove one.

What a new person's row is depends on the model (docs/verification.md):

    squares (fedalc-plda)   the likelihood ratio of its records, exactly as for others; the covariances do not change
    output unit             the mean of its embeddings, scaled to length 1
    fedncm                  the mean of its features, an axis of its own: as if it had taken part

Other heads were solved or trained together with all others, from sums that no run keeps: these are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedalc.core.atomic_files import previous, remove_folder
from fedalc.data.images.images import Images
from fedalc.data.label_names import one_form
from fedalc.errors import ConfigError, FedalcError
from fedalc.methods.fedalc_plda import row_of_new_person
from fedalc.models.calibration import Calibration
from fedalc.models.class_embeddings import are_axes, unit_rows
from fedalc.models.encoders import SparseRows, make_batch, make_encoder, scale_rows
from fedalc.models.encoders.squares import Squares
from fedalc.models.model import Model
from fedalc.models.predicting import refuse_empty
from fedalc.models.trained import TrainedModel
from fedalc.runs.folder import only_writer, read_settings
from fedalc.workflows.load_model import load_model, model_of
from fedalc.workflows.new_instances import read_records, table_of

FEW = 3  # records of a new person, below which a mean says little


def enrol_file(run: Path, name: str, file: str, out: Path | None, columns: Mapping[str, Any] | None = None) -> str:
    """Enrol the person whose records a file has, write the model, and return what was done, in words."""
    model, method = _model(run), _method(run)
    features = read_records(model, file, table_of(run, columns))
    new = enrolled(model, name, features, method)
    folder = model_of(run) if out is None else out
    kept = f"; the model before it is {previous(folder)}" if folder.exists() else ""
    _write(run, out, new, keep_previous=True)
    return f"{name} is enrolled with {features.shape[0]} records: {len(new.label_names)} persons{kept}"


def unenrol_run(run: Path, name: str, out: Path | None) -> str:
    """Remove a person from a run's model, write it, and return what was done and what is left, in words."""
    model = _model(run)
    new = unenrolled(model, name)
    _write(run, out, new, keep_previous=False)
    said = f"{name} is removed: row, name and counts of its scores. If training had this person, some is left: "
    said += what_remains(model)
    if out is None and (run / "checkpoint").exists():
        said += f". So does the checkpoint: delete {run / 'checkpoint'} (the model does not need it)"
    return said


def enrolled(model: TrainedModel, name: str, features: Any, method: str | None = None) -> TrainedModel:
    """Return the model with one more person. `method`: that it was trained with."""
    _check_name(model, name)
    if isinstance(features, Images) and model.pictures is not None:
        features = model.pictures.transform(features)
    refuse_empty(features, "every such record would pass", name)
    if features.shape[0] < FEW:
        warnings.warn(f"{features.shape[0]} records are few: at least {FEW} make a better row", stacklevel=2)
    if (known := _number(model, name)) is not None:  # a label without a client: its row is empty
        model = _without(model, known)
    scorer = model.scorer(features)  # refuses a wrong number of features
    encoder, W = model.model.encoder, model.model.W
    if model.model.W.shape[1] != model.encoder.dim:
        raise _refusal(method, "it has several sub-models")
    if model.model.columns is not None:
        raise _refusal(method, "its label needs a cluster and weights of its own")
    if isinstance(encoder, Squares):
        batch = make_batch(scale_rows(features, model.encoder.features), np.zeros(features.shape[0]), W.dtype, W.device)
        assert isinstance(batch, SparseRows)
        return _with_row(model, name, row_of_new_person(model.model, batch), features.shape[0])
    if model.encoder.output == "unit":
        return _with_row(model, name, unit_rows(scorer.encoded.mean(0, keepdim=True)), features.shape[0])
    if method == "fedncm" and are_axes(W):
        total = torch.from_numpy(np.asarray(scale_rows(features, model.encoder.features).sum(axis=0), np.float64))
        return _with_axis(model, name, unit_rows(total).T.to(W))
    raise _refusal(method, "its head was solved together with the others', from sums that the run did not keep")


def unenrolled(model: TrainedModel, name: str) -> TrainedModel:
    """Return the model without a person."""
    number = _number(model, name)
    if number is None or not model.held[number]:
        raise ConfigError(f"nobody is enrolled as {name!r:.60}", "NAME")
    if model.held.sum() == 1:
        raise FedalcError(f"{name} is the only person in this model: delete the run instead")
    return _without(model, number)


def what_remains(model: TrainedModel) -> str:
    """Return what of a removed person is left in the model, in words."""
    if isinstance(model.model.encoder, Squares):
        return "its records still count in the mean and the covariances, which are sums over all persons"
    if model.encoder.output == "raw" and are_axes(model.model.W):
        return (
            "its axis is gone too, but if the head was solved (fedalc-oneshot, fed3r), its records still count in G, "
            "the sum over all persons that the other columns follow from; with fedncm nothing is left"
        )
    return "its records have trained θ, and what θ learnt from them is left; only training without them removes that"


def _model(run: Path) -> TrainedModel:
    if (run / "config.toml").exists() and read_settings(run).task != "verification":
        raise FedalcError(
            f"{run}: its labels are no persons (the run was not trained with --task verification); to add or remove a "
            "label, train again"
        )
    model = load_model(model_of(run))
    if not isinstance(model, TrainedModel):
        raise FedalcError(f"{run}: a centralised model; persons can be enrolled in federated ones only")
    return model


def _method(run: Path) -> str | None:
    return read_settings(run).method if (run / "config.toml").exists() else None


def _write(run: Path, out: Path | None, model: TrainedModel, keep_previous: bool) -> None:
    folder = model_of(run) if out is None else out
    with only_writer(folder.resolve().parent):
        remove_folder(previous(folder))
        model.save(folder, keep_previous=keep_previous)


def _check_name(model: TrainedModel, name: str) -> None:
    if not name.strip() or "\n" in name:
        raise ConfigError(f"{name!r:.60} cannot be a name", "NAME")
    for at, known in enumerate(model.label_names):
        if model.held[at] and one_form(known) == one_form(name):
            raise ConfigError(f"{known} is enrolled already; remove that person first (fedalc unenrol)", "NAME")


def _number(model: TrainedModel, name: str) -> int | None:
    return model.label_names.index(name) if name in model.label_names else None


def _refusal(method: str | None, why: str) -> FedalcError:
    return FedalcError(
        f"a person cannot be enrolled in a model of {method or 'this kind'} afterwards: {why}. Use fedalc-plda, fedncm "
        "or a method whose scores are cosines, or train again with the new person"
    )


def _with_row(model: TrainedModel, name: str, row: Tensor, records: int) -> TrainedModel:
    changed = replace(model, model=Model(model.model.encoder, torch.cat([model.model.W, row])))
    return _named(changed, name, records)


def _with_axis(model: TrainedModel, name: str, column: Tensor) -> TrainedModel:
    """Return the model with a label that has a column of θ, and an axis, of its own."""
    W = nn.functional.pad(model.model.W, (0, 1, 0, 1))
    W[-1, -1] = 1
    (theta,) = model.model.theta
    return _named(_with_theta(model, torch.cat([theta.detach(), column], dim=1), W), name)


def _named(model: TrainedModel, name: str, records: int | None = None) -> TrainedModel:
    """Return the model with a name for its last row. `records`: those of the person, if the row is not what training
    would have given."""
    names, held = (*model.label_names, name), np.append(model.held, True)
    return replace(model, label_names=names, held=held, calibration=_grown(model.calibration, records))


def _grown(calibration: Calibration | None, records: int | None) -> Calibration | None:
    """Return the calibration with one more label, which gets the median of the others' offsets."""
    if calibration is None:
        return None
    offsets = np.append(calibration.offsets, np.median(calibration.offsets)).astype(np.float32)
    trials = calibration.trials
    if trials is not None and records is not None:
        trials = trials.with_late(len(offsets) - 1, records)
    return replace(calibration, offsets=offsets, trials=trials)


def _without(model: TrainedModel, number: int) -> TrainedModel:
    keep = np.arange(len(model.label_names)) != number
    W, encoder = model.model.W, model.model.encoder
    rows = W[torch.from_numpy(keep).to(W.device)]
    if (
        are_axes(W)
        and model.encoder.output == "raw"
        and not isinstance(encoder, Squares)
        and len(model.model.theta) == 1
    ):
        axis = int(W[number].argmax())
        columns = torch.arange(W.shape[1], device=W.device) != axis
        changed = _with_theta(model, model.model.theta[0].detach()[:, columns], rows[:, columns])
    else:
        changed = replace(model, model=Model(encoder, rows))
    names = tuple(name for at, name in enumerate(model.label_names) if keep[at])
    calibration = None if model.calibration is None else model.calibration.without(number)
    return replace(changed, label_names=names, held=model.held[keep], calibration=calibration)


def _with_theta(model: TrainedModel, theta: Tensor, W: Tensor) -> TrainedModel:
    """Return the model of a linear encoder with another matrix and as many axes."""
    settings = model.encoder.model_copy(update={"dim": W.shape[1]})
    encoder = make_encoder(model.feature_count, settings, torch.Generator()).to(theta)
    with torch.no_grad():
        (own,) = encoder.parameters()
        own.copy_(theta)
    return replace(model, model=Model(encoder, W), encoder=settings)
