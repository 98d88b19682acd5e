"""What to do about what the audit found, in sentences for its last paragraph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedalc.audit.answers import PARTY, SUM
from fedalc.audit.inversion import Inversion
from fedalc.audit.membership import Membership
from fedalc.data.dataset import Split

WELL_ABOVE = 0.2  # a cosine that is by so much above chance
TELLING = 0.6  # an AUC from which a model says much about single records


def about_inversion(found: Inversion, split: Split, fewest: int) -> Iterator[str]:
    few = np.asarray(split.labels.getnnz(axis=0))
    small = int(((few > 0) & (few < fewest)).sum())
    has = f"{small:,} of your {int((few > 0).sum()):,} labels have fewer than {fewest} records."
    exposed = {view: _exposed(found, view) for view in (PARTY, SUM)}
    if exposed[SUM]:
        yield (
            "Do not rely on secure sums for labels with few records: class embeddings tell the labels of a sum apart. "
            f"Exposed here: labels with {exposed[SUM]} records. {has}"
        )
    elif exposed[PARTY]:
        shown = f"what single parties' answers show (labels with {exposed[PARTY]} records)"
        yield f"Use secure sums: they hide {shown}. {has}"
    else:
        yield f"In these parties' answers labels with few records are hidden among others. {has}"
    yield (
        "Leave labels with few records out (fedalc deploy party --least-records), or join them into larger ones. Trust "
        "in the server, or noise at the parties (--set privacy.mechanism=sums), is the only protection for the others "
        "against chosen θ."
    )


def _exposed(found: Inversion, view: str) -> str:
    """Return the sizes of labels of which some question finds a record, or comes close: "1, 2"."""
    sizes = (
        row.size
        for row in found.rows
        if view in row.cells and (row.cells[view].found or row.cells[view].cosine > row.chance + WELL_ABOVE)
    )
    return ", ".join(map(str, dict.fromkeys(sizes)))


def about_membership(found: Membership) -> Iterator[str]:
    best = max((power for row in found.rows for power in (row.threshold, row.ratio) if power), key=lambda p: p.auc)
    if best.low > TELLING:
        yield (
            f"Treat a model like its data: who has it and a record can tell whether it was trained on it (AUC "
            f"{best.auc:.2f}). A larger penalty helps little; only noise for each record bounds it (--set "
            "privacy.mechanism=sums)."
        )
    else:
        yield f"The models tell little about whether a record was trained on (AUC {best.auc:.2f} at most)."
