"""At a party: sums that the server sends back must be of the same parties as the sum that is asked for now.

Seals (`table_seals`) show that a sum of the run gave some set sizes or numbers of documents, and not whose sum. With
set sizes of four parties in a training over seven, a record that parties on both sides have counts otherwise than with
those of all seven, and two trainings differ by that record alone.

Parties without --require-secure-sums may go on with fewer parties than those that counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flwr.app import Context

from fedalc.deployment.flower.party_memory import check_unchanged, fingerprint, remembered
from fedalc.deployment.flower.party_settings import insists
from fedalc.deployment.flower.table_seals import SumOf
from fedalc.deployment.flower.wire import BadMessage

_COUNTED, _TEXTS = "counted ", "parties with texts"  # in a party's memory of the run
_RANKED = "_ranked"  # in place of a run's id


def note_counted(context: Context, run: str, of: SumOf, names: Sequence[str]) -> None:
    """Remember the parties of a sum of counts that this party is in."""
    with remembered(context, run) as known:
        known[_COUNTED + of.session.hex()] = json.dumps(list(names))


def counted_by(context: Context, run: str, of: SumOf) -> list[str] | None:
    """Return the parties of a sum of counts, or None if this party is not in it."""
    with remembered(context, run) as known:
        return list(json.loads(known.get(_COUNTED + of.session.hex(), "null")) or []) or None


def check_counted(context: Context, run: str, of: SumOf, names: Sequence[str], ranks: bool = False) -> None:
    """Refuse what other parties counted than `names`, those of the sum at hand. `ranks`: of those that counted, parties
    with few held-out records may be missing."""
    if insists(context):
        _check(context, counted_by(context, run, of), names, ranks)


def note_texts(context: Context, run: str, of: SumOf) -> None:
    """Remember the parties whose documents make the run's features of texts."""
    if insists(context):
        counted = json.dumps(counted_by(context, run, of))
        check_unchanged(context, run, {_TEXTS: counted}, "sends features of texts of other parties than before")


def check_texts(context: Context, run: str, names: Sequence[str], ranks: bool = False) -> None:
    """Refuse features of texts that other parties agreed on."""
    with remembered(context, run) as known:
        texts = known.get(_TEXTS)
    if texts is not None:
        _check(context, json.loads(texts), names, ranks)


def _check(context: Context, counted: list[str] | None, names: Sequence[str], ranks: bool) -> None:
    same = counted is not None and (set(names) <= set(counted) if ranks else list(names) == counted)
    if same and ranks:  # one answer to each list of parties, over all runs
        with remembered(context, _RANKED) as known:
            whole, part = (fingerprint(*(name.encode() for name in each)) for each in (counted or [], names))
            same = known.setdefault(part, whole) == whole
    if not same:
        raise BadMessage(
            "tells what other parties counted than those of this sum: begin a new run with the parties that are left"
        )
