"""What set sizes without a join cost (docs/results/set-sizes.md): precision, bytes and time.

    FEDALC_DATA=… python benchmarks/set_sizes.py quality | cost | psi | parties  [demo bibtex eurlex15k …]

quality: test set, one round of `fedalc-oneshot`, preset `strong`, all records of train; sums under three keys.
cost: bytes of the collection by join and by sums, and processor seconds of the simulation.
psi: n and c of FedALC by private set intersection (needs the extra `psi`), and what it took.
parties: the same between three real parties, all in this process (needs the extras `psi` and `flower`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedalc
from fedalc.data.dataset import Dataset
from fedalc.labels.collection.buckets import Tables
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.psi import Traffic, intersection_size
from fedalc.labels.correlations import Correlations
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.training.federated import knowledge_for

KEYS = 3
MOST_PAIRS, SAMPLED = 5000, 400


def main() -> None:
    parts: dict[str, Callable[[Dataset], None]] = {"quality": quality, "cost": cost, "psi": psi, "parties": parties}
    part, *names = sys.argv[1:] or ["cost"]
    for name in names or ["demo", "bibtex"]:
        print(f"\n{name}", flush=True)
        parts[part](fedalc.load_dataset(name))


def quality(data: Dataset) -> None:
    """Print P@1/P@3/P@5 by how m is collected, and how many set sizes are wrong."""
    records, sizes = len(data.train), np.asarray(data.train.labels.getnnz(axis=1))
    _row("join", precision(data, {}))
    for what, collection in (
        ("sums, default size", {}),
        ("sums, bound = records: at most 0.5 % collide", {"records": records}),
        ("sums, bound = records / 4", {"records": records // 4, "collisions": 0.005}),
    ):
        for number in range(KEYS):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "key"
                Key(bytes(range(number, number + 40))).write(path)
                asked = {"by": "sums", "key": str(path), **collection}
                found = learnt(data, asked).set_sizes
                assert found is not None
                wrong = found[sizes > 0] - sizes[sizes > 0]
                note = f"{(wrong > 0).sum()} of {len(wrong)} wrong, at most {wrong.max()} too large"
                if (wrong > 0).any():
                    _row(f"{what}, key {number}", precision(data, asked), note)
                else:
                    _row(f"{what}, key {number}", "the join's", note)
    _row("join, mean for each label", precision(data, {}, "expected"))
    mean = learnt(data, {"by": "sums"}, "expected").labels.mean_set_size  # type: ignore[union-attr]
    exact = sizes[sizes > 0].mean()
    _row("sums, one mean for all", precision(data, {"by": "sums"}, "expected"), f"mean {mean:.3f}, exactly {exact:.3f}")
    _row("none", precision(data, {}, "ignored"))


def cost(data: Dataset) -> None:
    """Print the bytes of the collection, in all and for one client, and the time of its simulation."""
    clients = int((data.train.labels.getnnz(axis=0) > 0).sum())
    for what, collection, set_size in (
        ("join", {}, "exact"),
        ("sums, default size", {"by": "sums"}, "exact"),
        ("sums, bound = records", {"by": "sums", "records": len(data.train)}, "exact"),
        ("sums, mean only", {"by": "sums"}, "expected"),
    ):
        began = time.process_time()
        known = learnt(data, collection, set_size)
        seconds = time.process_time() - began
        facts = known.collection
        size = f"{facts['tables']} tables of {facts['buckets']:,}" if "tables" in facts else ""
        per_client = f"{known.bytes_up / clients / 1e3:,.1f} kB up, {known.bytes_down / clients / 1e3:,.1f} kB down"
        total = f"{known.bytes_up / 1e6:,.2f} MB up, {known.bytes_down / 1e6:,.2f} MB down"
        _row(what, f"per client {per_client}; in all {total}; {seconds:.2f} s", size)
        if "collisions" in facts:
            tables = Tables(facts["tables"], facts["buckets"])
            _row("", f"expected share of wrong sizes {tables.collision_rate(len(data.train)):.1e}")


def psi(data: Dataset) -> None:
    """Print what private set intersection of all pairs of labels takes, checked against the join. With many pairs, of a
    random sample."""
    joined = learnt(data, {}, method="fedalc").labels
    assert isinstance(joined, Correlations)
    labels = np.flatnonzero(joined.counts)
    pairs = len(labels) * (len(labels) - 1) // 2
    if pairs > MOST_PAIRS:
        sampled_psi(data, joined, labels, pairs)
        return
    began = time.process_time()
    known = learnt(data, {"by": "psi"}, method="fedalc")
    seconds = time.process_time() - began
    assert isinstance(known.labels, Correlations) and known.collection["intersections"] == pairs
    assert (known.labels.together != joined.together).nnz == 0 and (known.labels.counts == joined.counts).all()
    _row(f"{len(labels)} labels", f"{pairs:,} intersections; {seconds:,.0f} processor seconds")
    sent = known.bytes_up
    _row("", f"{1e3 * seconds / pairs:.1f} ms and {sent / pairs / 1e3:.1f} kB each; {sent / 1e6:,.1f} MB in all")
    _row("", f"equal to the join; N {known.labels.instances} by a sum, {joined.instances} by the join")


def parties(data: Dataset, count: int = 3) -> None:
    """Print what private set intersection between parties takes; labels are dealt to them in turn."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from flwr.app import Context, Message, RecordDict

    from fedalc.deployment.flower.census import Census
    from fedalc.deployment.flower.client_app import app
    from fedalc.deployment.flower.server_app import app as server_app
    from fedalc.deployment.local import write_party
    from tests.deployment.flower.local_grid import LocalGrid

    seconds: dict[str, list[float]] = {}

    def timed(message: Message, context: Context) -> Message:
        began = time.process_time()
        reply = app(message, context)
        seconds.setdefault(message.metadata.message_type, []).append(time.process_time() - began)
        return reply

    labels, names = np.flatnonzero(data.train.labels.getnnz(axis=0)), data.label_names
    with tempfile.TemporaryDirectory() as folder:
        here, nodes = Path(folder), {}
        Key(bytes(range(40))).write(here / "key")
        for node in range(1, count + 1):
            own = labels[node - 1 :: count].tolist()
            written = write_party(here / f"party {node}", data.train, own, [names[label] for label in own])
            nodes[node] = {"data": str(written), "key": str(here / "key"), "client": f"party {node}"}
        config: dict[str, Any] = {"method": "fedalc", "num-server-rounds": 1, "held-out-share": 0.0, "run-id": "psi"}
        config |= {"num-parties": count, "secure-sums": "off", "set": "encoder.dim=8"}
        found = {}
        for by in ("psi", "join"):
            config |= {"collection": by, "run-folder": str(here / by)}
            server_app(LocalGrid(nodes, timed), Context(1, 1, {}, RecordDict(), config))  # type: ignore[arg-type]
            census = Census.load(here / by)
            assert census is not None and census.knowledge is not None
            found[by] = census.knowledge
    ours, joined = found["psi"].labels, found["join"].labels
    assert isinstance(ours, Correlations) and isinstance(joined, Correlations)
    assert (ours.together != joined.together).nnz == 0 and (ours.counts == joined.counts).all()
    _row(f"{count} parties", f"{found['psi'].collection['intersections']:,} intersections, equal to the join")
    for kind in ("psi_requests", "psi_answers", "psi_counts"):
        _row(kind, ", ".join(f"{each:.1f}" for each in seconds[f"query.{kind}"]) + " processor seconds at each party")
    for by, known in found.items():
        _row(by, f"{known.bytes_up / 1e6:.2f} MB up, {known.bytes_down / 1e6:.2f} MB down, of all parties")
    _row("N", f"{ours.instances} by a bitmap, {joined.instances} by the join")


def sampled_psi(data: Dataset, joined: Correlations, labels: np.ndarray, pairs: int) -> None:
    by_label, random = data.train.labels.tocsc(), np.random.default_rng(0)

    def elements(label: int) -> frozenset[str]:
        rows = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        return frozenset(f"{row:032x}" for row in rows)  # as long as a digest

    taken, sent = np.zeros(SAMPLED), np.zeros(SAMPLED)
    for number in range(SAMPLED):
        u, v = random.choice(labels, 2, replace=False)
        traffic, began = Traffic(), time.process_time()
        assert intersection_size(elements(u), elements(v), traffic) == joined.together[u, v]
        taken[number], sent[number] = time.process_time() - began, traffic.bytes
    each, error = taken.mean(), taken.std(ddof=1) / np.sqrt(SAMPLED)
    _row(f"{len(labels)} labels", f"{SAMPLED} of {pairs:,} pairs, drawn at random, equal to the join")
    _row("", f"{1e3 * each:.1f} ± {1e3 * error:.1f} ms and {sent.mean() / 1e3:.1f} kB each")
    size = pairs * sent.mean() / 1e6
    _row("", f"so all take {pairs * each:,.0f} ± {pairs * error:,.0f} processor seconds, {size:,.0f} MB")


def learnt(
    data: Dataset, collection: dict[str, Any], set_size: str = "exact", method: str = "fedalc-oneshot"
) -> LabelKnowledge:
    asked = {"method": method, "client": {"set_size": set_size}, "collection": collection}
    knowledge = knowledge_for(fedalc.experiment(asked), data.train, data.label_names)
    assert knowledge is not None
    return knowledge


def precision(data: Dataset, collection: dict[str, Any], set_size: str = "exact") -> str:
    run = fedalc.train(
        data,
        method="fedalc-oneshot",
        client={"set_size": set_size},
        collection=collection,
        selection={"validation": 0, "calibrate": False},
        verbose=False,
    )
    return "/".join(f"{run.metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))


def _row(what: str, figures: str, note: str = "") -> None:
    print(f"  {what:48} {figures}  {note}", flush=True)


if __name__ == "__main__":
    main()
