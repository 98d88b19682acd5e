"""An exported ONNX file, run by onnxruntime, predicts what the model predicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse

from fedalc.core.registry import ENCODERS
from fedalc.data.images.images import Images
from fedalc.errors import FedalcError
from fedalc.evaluation.calibrate import fit_calibration, held_out_scores
from fedalc.models.calibration import Calibration
from fedalc.models.dense_scores import Probabilities, scale_dense
from fedalc.models.encoders import register_module, scale_rows
from fedalc.models.trained import TrainedModel
from fedalc.workflows.export_onnx import export_onnx
from tests.commands import run
from tests.models.drawn import FEATURES, LABELS, SIDE, make_model

onnxruntime = pytest.importorskip("onnxruntime")


class Own(torch.nn.Module):
    dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(FEATURES, 8), torch.nn.Linear(8, self.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


CASES: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear", "features": "unit", "output": "unit"},
    "axis per label": {"name": "linear", "constant": 0.7, "output": "raw", "features": "raw", "axes": True},
    "mlp": {"name": "mlp", "embedding": 8, "hidden": (7,), "shortcut": True, "features": "mean"},
    "mixed precision": {"name": "mlp", "embedding": None, "hidden": (7,), "output": "raw", "precision": "mixed"},
    "random features": {"name": "random-features", "random_features": 11, "constant": 0.5, "output": "raw"},
    "random cosines": {"name": "random-features", "random_features": 11, "activation": "cosine", "linear_part": False},
    "fedmlh": {"name": "mlp", "embedding": 8, "hidden": (7,), "copies": 3},
    "own module": {},  # registered for each test
}


@pytest.fixture(autouse=True)
def own_encoder() -> Iterator[None]:
    before = dict(ENCODERS._registered)
    CASES["own module"] = register_module(Own())
    yield
    ENCODERS._registered.clear()
    ENCODERS._registered.update(before)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_gives_the_labels_and_scores_of_predict(tmp_path: Path, case: str) -> None:
    model = make_model(**CASES[case])
    model.save(tmp_path / "model")
    done = export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    X = random_sparse(12, FEATURES, 0.3, format="csr", random_state=3, dtype=np.float32)
    in_full = make_model(**CASES[case] | {"precision": "full"})  # the file never computes in bfloat16
    compare(in_full, X, tmp_path / "model.onnx", "features", X.toarray())
    assert done.difference < 1e-5 and done.bytes == (tmp_path / "model.onnx").stat().st_size


@pytest.mark.long
def test_a_calibrated_model_gives_probabilities_too(tmp_path: Path) -> None:
    model = make_model(**CASES["axis per label"])
    X = random_sparse(80, FEATURES, 0.3, format="csr", random_state=3, dtype=np.float32)
    Y = csr_matrix((np.random.default_rng(5).random((80, LABELS)) < 0.3).astype(np.float32))
    fitted = fit_calibration([held_out_scores(model.scorer(X), Y, model.held)], LABELS)
    model = replace(model, calibration=fitted)
    model.save(tmp_path / "model")
    said = run("export", "model", "--onnx", "model.onnx", cwd=tmp_path).stdout
    assert f"output  probabilities: float32 instances × {LABELS}" in said
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"features": X.toarray()})
    np.testing.assert_allclose(found, model.predict_proba(X), atol=1e-5)
    compare(model, X, tmp_path / "model.onnx", "features", X.toarray())
    assert found.dtype == np.float32 and (found[:, ~model.held] == 0).all() and 0.1 < found[:, model.held].mean() < 0.9


def test_the_curve_of_probabilities_is_that_of_the_calibration() -> None:
    """At scores before, at, between and after the knots."""
    calibration = Calibration(np.array([0.1, 0.4]), np.array([20.0, 5.0, 8.0]), np.float32([0.5, -1]), None, 1)  # type: ignore[arg-type]
    scores = np.float32([[-1, -np.inf], [0.1, 0.25], [0.4, 0.7], [3, 0.3]])
    found = Probabilities(calibration)(torch.from_numpy(scores)).numpy()
    np.testing.assert_allclose(found, calibration.probabilities(scores), atol=1e-6)


@pytest.mark.long
def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = make_model(name="resnet-small", output="raw")
    model.save(tmp_path / "model")
    export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    pixels = np.random.default_rng(1).integers(0, 256, (5, SIDE, SIDE, 3)).astype(np.uint8)
    compare(model, Images(pixels, list("abcde")), tmp_path / "model.onnx", "pictures", pixels)


def compare(model: TrainedModel, instances: Any, file: Path, name: str, given: np.ndarray) -> None:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {name: given})
    assert scores.dtype == np.float32 and np.isinf(scores[:, ~model.held]).all()
    labels, wanted = model.predict(instances, k=LABELS)
    assert labels.shape[1] == model.held.sum()
    order = np.argsort(-scores, axis=1, kind="stable")[:, : labels.shape[1]]
    np.testing.assert_array_equal(order, labels)
    np.testing.assert_allclose(np.take_along_axis(scores, order, 1), wanted, rtol=1e-4, atol=1e-5)
    (alone,) = session.run(["scores"], {name: given[:1]})
    np.testing.assert_allclose(alone, scores[:1], rtol=1e-4, atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(facts["labels"])) == model.label_names


@pytest.mark.parametrize("how", ["unit", "mean", "raw"])
def test_dense_rows_are_scaled_like_sparse_ones(how: str) -> None:
    X = random_sparse(6, FEATURES, 0.3, format="csr", random_state=3, dtype=np.float32)
    X.data[X.indptr[1] : X.indptr[2]] *= np.float32(1e30)
    X.data[X.indptr[2] : X.indptr[3]] *= np.float32(1e-30)
    X.data[X.indptr[3] : X.indptr[4]] = 0
    X.eliminate_zeros()
    found = scale_dense(torch.from_numpy(X.toarray()), how).numpy()
    np.testing.assert_allclose(found, scale_rows(X, how).toarray(), rtol=1e-6)


@pytest.mark.long
def test_a_file_that_does_not_agree_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(**CASES["linear"])
    model.save(tmp_path / "model")
    monkeypatch.setattr("fedalc.models.dense_scores.scale_dense", lambda features, how: features * 2 + 1)
    with pytest.raises(FedalcError, match="nothing was written"):
        export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.long
def test_the_command_says_what_goes_in_and_out(tmp_path: Path) -> None:
    make_model(**CASES["linear"]).save(tmp_path / "model")
    said = run("export", "model", "--onnx", "out/model.onnx", cwd=tmp_path)
    assert "features: float32 instances × 30" in said.stdout and "instances × 9" in said.stdout
    assert "--onnx" in run("export", "model", cwd=tmp_path, code=2).stderr
    assert "is a folder" in run("export", "model", "--onnx", "out", cwd=tmp_path, code=2).stderr
    assert "not a saved model" in run("export", "out", "--onnx", "x", cwd=tmp_path, code=2).stderr
