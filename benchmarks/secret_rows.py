"""What secret rows are worth (embeddings.secret, docs/exact.md): P@1 of who has θ and the server's W, but not the key.

    FEDALC_DATA=… python benchmarks/secret_rows.py [demo | bibtex …]

One round of `fedalc-oneshot` with preset `strong`, all records of train. The attackers know θ, W before the turn, the
label sets of train without names, and, where said, records of the test set; P@1 is on the others.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import fedalc
from fedalc.data.dataset import Split
from fedalc.labels.collection.keys import Key
from fedalc.models.encoders import scale_rows
from fedalc.training.federated import FederatedTraining, knowledge_for, simulated

LABELLED = (50, 200, 500)


def main() -> None:
    for name in sys.argv[1:] or ["demo", "bibtex"]:
        print(f"{name}\n" + "\n".join(f"  {who:60} {value:5.1f}" for who, value in figures(fedalc.load_dataset(name))))


def figures(data: fedalc.Dataset) -> Iterator[tuple[str, float]]:
    training, W = solved(data, secret=True), solved(data, secret=False).model.W.numpy()
    weights, theta = training.method.label_weights.numpy()[:, None], training.model.theta[0].detach().numpy()
    outputs, labels = scaled(data.test, training).features @ theta, data.test.labels.toarray()
    label_sets = data.train.labels.toarray()

    def precision(rows: np.ndarray, known: int = 0) -> float:
        top = (outputs[known:] @ rows.T).argmax(1)
        return 100 * float(labels[known:][np.arange(len(top)), top].mean())

    yield "a label at random", 100 * float(labels.mean())
    yield "the commonest label, always", 100 * float(labels[:, label_sets.sum(0).argmax()].mean())
    targets = W * weights  # what outputs are to be, for each label
    yield "θ and W", precision(W)
    yield "θ, W and label sets", precision(W @ aligned(theta, label_sets @ targets))
    yield "θ, W, label sets and all test records, unlabelled", precision(W @ aligned(outputs, label_sets @ targets))
    for known in LABELLED:
        left, _, right = np.linalg.svd((labels[:known] @ targets).T @ outputs[:known])  # the best rotation
        yield f"θ, W and {known} records with their labels", precision(W @ left @ right, known)
    yield "the key", precision(training.model.W.numpy())


def aligned(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the rotation of `targets` that matches the axes along which the two are longest; means give the signs."""
    ours, theirs = (np.linalg.eigh(some.T @ some)[1] for some in (outputs, targets))
    signs = np.sign(ours.T @ outputs.mean(0)) * np.sign(theirs.T @ targets.mean(0))
    rotation: np.ndarray = theirs @ np.diag(signs) @ ours.T
    return rotation


def solved(data: fedalc.Dataset, secret: bool) -> FederatedTraining:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        Key(bytes(range(7, 47))).write(key)  # always the same: other keys give other digits
        settings = fedalc.experiment(
            {"method": "fedalc-oneshot", "dtype": "float64", "embeddings": {"secret": secret}},
            overrides=[f'collection.key="{key}"'],
        )
        train = scaled(data.train, settings)
        training = simulated(settings, train, knowledge_for(settings, train))
    training.run_round()
    return training


def scaled(split: Split, of: FederatedTraining | fedalc.Experiment) -> Split:
    settings = of if isinstance(of, fedalc.Experiment) else of.settings
    return Split(scale_rows(split.features, settings.encoder.features), split.labels)


if __name__ == "__main__":
    main()
