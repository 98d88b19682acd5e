"""docs/results/pretrained.md, from what `pretrained.py` measured."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "src" / "fedalc" / "reproduction" / "experiments"
SHOWN = ("mAP", "P@1", "P@3")
OF_TEXTS = ("P@1", "P@3", "P@5")
DATASETS = {"voc2012": ("VOC 2012", "voc2012"), "coco-val2017": ("COCO", "coco")}  # title, and the paper's table of it
PICTURES = 11_540  # of VOC 2012, train and val
SIDE = 160
ABSENT = ", difficult objects absent"
DIFFERS = """\
What differs: the paper trains a ResNet-50, as far as it says from a random start, on pictures of presumably 224 pixels,
for 300 (VOC) and 100 rounds (COCO). Here a linear head is trained on the features of MobileNetV2, frozen, pretrained on
ImageNet, at 160 pixels (files of 96). VOC: the paper tests on pictures that it trained on; here train and val are
apart. COCO: the paper has about 74,000 training pictures, here 4,022 of val2017, tested on the other 978. How the paper
counts VOC's difficult objects it does not say; here they are labels, and in the columns beside it absent."""
COUNTING = """\
VOC marks some objects as difficult (small, cut off, hard to tell). They are in the picture, so they are labels by
default (`images.difficult=true`). In rows and columns "difficult objects absent" they are not, in training and test
(`images.difficult=false`). VOC's own evaluation ignores them, so neither is VOC's official figure. A picture of VOC
2012's val has 1.52 labels, so P@3 is at most 49.9; without difficult objects 1.43 and 47.3."""

Results = Mapping[str, Any]


def page(results: Results, searches: Iterable[str], texts: Iterable[str]) -> str:
    """Return the tables of what is finished."""
    lines = ["# Pretrained features", ""]
    lines += ["Made by `make pretrained` (benchmarks/pretrained.py). What it means: pictures"]
    lines[-1] += " [images.md](../images.md#pretrained-features), texts [text.md](../text.md#sentence-encoders)."
    lines += _searches(results, [name for name in searches if name in results])
    lines += _beside_the_paper(results)
    for dataset in DATASETS:
        for counted in _countings(results, dataset):
            lines += _methods(dataset + counted, results[f"methods {dataset}{counted}"])
    lines += _texts(results, [name for name in texts if name in results])
    lines += _costs(results)
    return "\n".join(lines) + "\n"


def line(*cells: Any) -> str:
    return "| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def head(*cells: str) -> list[str]:
    return ["", line(*cells), line(*["---"] * len(cells))]


def chosen(found: Results) -> str:
    """Return in words what a search chose."""
    what = found["chosen"]
    if not what:
        return f"no search: {found['method']} with fixed settings"
    return f"{what['client']['loss']}, {what['encoder']['name']}, penalty {what['server']['ridge']:g}"


def _searches(results: Results, names: Sequence[str]) -> list[str]:
    lines = ["", "## The default command", "", COUNTING]
    lines += head("run", *SHOWN, "mAP on held-out train", "chosen", "rounds", "MB up per label, search and training")
    for name in names:
        found = results[name]
        figures = [found["metrics"][metric] for metric in SHOWN]
        each = found["bytes_up"] / found["clients"] / 1e6
        lines.append(line(name, *figures, found["held_out"] or "", chosen(found), found["rounds_run"], each))
    return lines


def _beside_the_paper(results: Results) -> list[str]:
    """Return the paper's methods with its figures and ours."""
    known = [dataset for dataset in DATASETS if f"methods {dataset}" in results]
    if not known:
        return []
    columns = [(dataset, place, metric) for dataset in known for place, metric in enumerate(("mAP", "P@3"))]
    titles: list[str] = []
    for dataset, _, metric in columns:
        kinds = ("paper", *(f"here{counted}" for counted in _countings(results, dataset)))
        titles += [f"{DATASETS[dataset][0]}: {metric}, {kind}" for kind in kinds]
    lines = ["", "## Beside the paper's table", "", DIFFERS, *head("method", *titles)]
    published = {dataset: _published(DATASETS[dataset][1]) for dataset in known}
    for row, found in enumerate(results[f"methods {known[0]}"]):
        cells: list[Any] = []
        for dataset, place, metric in columns:
            cells.append(published[dataset].get(found["method"], ("–", "–"))[place])
            for counted in _countings(results, dataset):
                cells.append(results[f"methods {dataset}{counted}"][row]["metrics"][metric])
        lines.append(line(found["method"], *cells))
    return lines


def _countings(results: Results, dataset: str) -> list[str]:
    return [counted for counted in ("", ABSENT) if f"methods {dataset}{counted}" in results]


def _published(table: str) -> dict[str, tuple[float, float]]:
    rows = tomllib.loads((PUBLISHED / table / "table.toml").read_text(encoding="utf-8"))["rows"]
    return {row["method"]: tuple(row["published"]) for row in rows}


def _methods(dataset: str, rows: Sequence[Results]) -> list[str]:
    lines = ["", f"## Methods on {dataset}, MobileNetV2's features, preset strong"]
    lines += head("method", *SHOWN, "rounds, with the refit", "largest cosine in W", "MB up, all labels")
    for found in rows:
        cosine = (found["collapse"] or {}).get("max_cosine", "")
        figures = [found["metrics"][metric] for metric in SHOWN]
        shown = f"{cosine:.2f}" if isinstance(cosine, float) else ""
        lines.append(line(found["method"], *figures, found["rounds_run"], shown, found["bytes_up"] / 1e6))
    return lines


def _texts(results: Results, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    lines = ["", "## Texts: the default command", ""]
    lines += [
        "MiniLM: all-MiniLM-L6-v2, frozen, texts cut at 256 tokens. Settings are chosen by P@1 on held-out train."
    ]
    lines += head("run", *OF_TEXTS, "P@1 on held-out train", "chosen", "rounds", "test records")
    for name in names:
        found = results[name]
        figures = [f"{found['metrics'][metric]:.2f}" for metric in OF_TEXTS]
        held_out = "–" if found["held_out"] is None else f"{found['held_out']:.2f}"
        lines.append(line(name, *figures, held_out, chosen(found), found["rounds_run"], found["test_records"]))
    return lines


def _costs(results: Results) -> list[str]:
    """Return what frozen features cost, and a ResNet-50 from a random start."""
    if "costs" not in results or "methods voc2012" not in results:
        return []
    one_round = next(row for row in results["methods voc2012"] if row["method"] == "fedalc-oneshot")
    sums = one_round["bytes_up"] / one_round["clients"] / one_round["rounds_run"] / 1e6
    bench = json.loads((ROOT / "benchmarks" / "pictures.json").read_text(encoding="utf-8"))
    resnet = next(row for row in bench["rows"] if row["encoder"] == "resnet50")
    seconds = resnet["ms_per_picture"] / 1000 * bench["machine"]["cores"]
    lines = ["", "## Costs on VOC 2012"]
    once = ("", "processor seconds per picture", "how often", "weights, MB", "features in the cache, MB")
    lines += head(*once, "MB up per label and round")
    for name, found in results["costs"].items():
        cache = PICTURES * found["features per picture, bytes"] / 1e6
        cost = f"{found['processor seconds per picture']:.3f}"
        lines.append(line(f"{name}, frozen, {SIDE} pixels", cost, "once", found["weights, MB"], cache, sums))
    theta = resnet["theta_bytes"] / 1e6
    lines.append(
        line(
            f"ResNet-50 from a random start, {resnet['size']} pixels",
            f"{seconds:.3f}",
            "in each pass",
            theta,
            "–",
            theta,
        )
    )
    copies = PICTURES * 3 * SIDE**2 / 1e6
    lines += [
        "",
        f"The cache also has the small copies of the pictures, {copies:.0f} MB at {SIDE} pixels, which may be",
    ]
    lines += [
        "deleted. MB up: of frozen features the sums of fedalc-oneshot (one round); of ResNet-50 θ, in every round."
    ]
    lines += ["ResNet-50: `make bench-pictures`, seconds times cores."]
    return lines
