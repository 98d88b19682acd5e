"""Set sizes from sums: equal to those of the join, without label sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import fedalc
from fedalc.config.resolve import default_choice
from fedalc.config.schema import CollectionSettings
from fedalc.core.registry import METHODS
from fedalc.data.dataset import Split
from fedalc.errors import ConfigError, FedalcError
from fedalc.labels.collection.identity import SharedEncoder
from fedalc.labels.collection.keys import Key
from fedalc.labels.collection.sums import Counted, SetSize, Sum, count, plain_sum
from fedalc.labels.correlations import LabelCounts
from fedalc.labels.knowledge import LabelKnowledge
from fedalc.training.federated import knowledge_for, simulated
from tests.data.clinics import NAMES, union, write_clinics
from tests.problems import random_split, real_data

TRAIN = random_split(80, 20, 8, seed=4)
ENCODER = SharedEncoder(fedalc.experiment().encoder, 0)
EXACT: dict[str, Any] = {"method": "fedalc-oneshot", "dtype": "float64", "encoder": {"dim": 8}}


def known(train: Split, by: str, **keys: Any) -> LabelKnowledge:
    collection = {"by": by, **keys.pop("collection", {})}
    knowledge = knowledge_for(fedalc.experiment({**EXACT, "collection": collection, **keys}), train)
    assert knowledge is not None
    return knowledge


def counted(
    rows: list[list[int]],
    contents: list[int],
    parties: list[int] | None,
    set_size: SetSize = "exact",
    add: Sum = plain_sum,
    **keys: Any,
) -> Counted:
    """Count label rows of records that are named by numbers. The digest of a record is of its content."""
    Y, X = csr_matrix(np.array(rows, dtype=np.float32)), csr_matrix(np.eye(9, dtype=np.float32)[contents])
    settings = CollectionSettings(identity="content", by="sums", **keys)
    senders = None if parties is None else np.array(parties)
    return count(settings, X, Y, [f"label {u}" for u in range(Y.shape[1])], ENCODER, set_size, senders, add)


@pytest.mark.parametrize("identity", ["record", "content"])
def test_sums_give_what_the_join_gives(identity: str) -> None:
    ours, joined = (known(TRAIN, by, collection={"identity": identity}) for by in ("sums", "join"))
    assert isinstance(ours.labels, LabelCounts) and not hasattr(ours.labels, "together")
    has_label = TRAIN.labels.getnnz(axis=1) > 0
    assert ours.set_sizes is not None and joined.set_sizes is not None
    np.testing.assert_array_equal(ours.set_sizes[has_label], joined.set_sizes[has_label])
    np.testing.assert_array_equal(ours.labels.counts, joined.labels.counts)  # type: ignore[union-attr]
    assert ours.holders is None


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"method": "fedalc-exact", "rounds": 4},
        {"method": "fedalc-exact", "rounds": 4, "client": {"loss": "logistic"}},
        {"method": "fedalc-exact", "rounds": 3, "client": {"loss": "softmax"}},
    ],
)
def test_training_by_sums_is_training_by_the_join_bit_by_bit(keys: dict[str, Any]) -> None:
    trained = []
    for by in ("sums", "join"):
        settings = fedalc.experiment({**EXACT, **keys, "collection": {"by": by}})
        training = simulated(settings, TRAIN, knowledge_for(settings, TRAIN))
        for _ in range(settings.rounds if not METHODS[settings.method].one_round else 1):
            training.run_round()
        trained.append(training)
    assert float(trained[0].model.theta[0].detach().abs().max()) > 0
    for ours, theirs in zip(trained[0].model.values, trained[1].model.values, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["bibtex", "eurlex15k"])
def test_at_the_default_size_real_set_sizes_are_right(name: str) -> None:
    real_data(name)
    train = fedalc.load_dataset(name).train
    ours, sizes = known(train, "sums"), train.labels.getnnz(axis=1)
    assert ours.set_sizes is not None
    np.testing.assert_array_equal(ours.set_sizes[sizes > 0], sizes[sizes > 0])
    assert ours.collection["collisions"] < 1e-4
    small = known(train, "sums", collection={"records": len(train)}).set_sizes  # the smallest tables for 0.5 %
    assert small is not None and (small >= sizes)[sizes > 0].all()
    assert 0.002 < (small != sizes)[sizes > 0].mean() < 0.008


def test_a_pair_at_several_parties_counts_once() -> None:
    # Record 0: labels 0, 1 at party 0, and 0, 2 at party 1. Record 1: label 1 at all three. Record 2: at party 2 only.
    rows = [[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 1]]
    sums = counted(rows, [0, 0, 1, 1, 1, 2], [0, 1, 0, 1, 2, 2])
    assert sums.set_sizes is not None and sums.holders is not None
    assert sums.set_sizes.tolist() == [3, 3, 1, 1, 1, 3]
    assert sums.holders.tolist() == [2, 1, 2, 1, 3, 3, 3, 1, 1, 1]
    assert sums.counts.tolist() == [2, 3, 2]
    # A record twice in one party's file is one record of it.
    assert counted([[1, 0], [1, 0], [0, 1]], [0, 0, 0], [0, 0, 1]).set_sizes.tolist() == [2, 2, 2]  # type: ignore[union-attr]
    # The mean alone: no table is sent to the parties, and each counts its own pairs.
    mean = counted(rows, [0, 0, 1, 1, 1, 2], [0, 1, 0, 1, 2, 2], set_size="expected")
    assert mean.set_sizes is None and mean.holders is None and mean.bytes_down == 0
    assert mean.counts.tolist() == [3, 5, 2] and mean.mean_set_size == pytest.approx(10 / 3, rel=0.01)


def test_many_parties_with_the_same_pair() -> None:
    """Parts of more than 24 holders are rounded, and still add up."""
    rows, parties = [[1, 1]] * 50 + [[1, 0]] * 7, [*range(50), *range(50, 57)]
    sums = counted(rows, [3] * 57, parties)
    assert sums.set_sizes is not None and sums.holders is not None
    assert set(sums.set_sizes.tolist()) == {2} and sums.counts.tolist() == [1, 1]
    assert sums.holders.tolist() == [57, 50] * 50 + [57] * 7


def test_parties_in_a_folder_train_as_with_the_join(tmp_path: Path) -> None:
    data = fedalc.load_dataset(write_clinics(tmp_path / "clinics", union()))
    assert list(data.label_names or ()) == NAMES
    models = []
    for by in ("join", "sums"):
        collection = {"by": by, "identity": "content"}
        settings = fedalc.experiment({**EXACT, "clients": "parties", "collection": collection})
        knowledge = knowledge_for(settings, data.train)
        training = simulated(settings, data.train, knowledge)
        training.run_round()
        models.append((training.model.theta[0], knowledge))
    assert torch.equal(models[0][0], models[1][0])
    joined, ours = models[0][1], models[1][1]
    assert joined is not None and ours is not None and joined.holders is not None and ours.holders is not None
    assert joined.holders.max() > 1
    np.testing.assert_array_equal(joined.holders, ours.holders)


def test_equal_records_of_two_users_have_the_set_size_of_the_join() -> None:
    rows = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=np.float32)
    train = Split(csr_matrix(np.eye(2)[[0, 0, 1]]), csr_matrix(rows), users=("a", "b", "b"))
    for by in ("join", "sums"):
        knowledge = known(train, by, clients="users", collection={"identity": "content"})
        assert knowledge.holders is None and knowledge.set_sizes is not None
        assert knowledge.set_sizes.tolist() == [2, 2, 1]


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.labels.collection.buckets.FEWEST_BUCKETS", 1)


@pytest.mark.usefixtures("small_tables")
def test_with_too_few_buckets_sizes_are_too_large_but_never_below_a_partys_own_count() -> None:
    rows = [[1, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    with pytest.warns(UserWarning, match=r"collection.records is 2, and there are about"):
        sums = counted(rows * 3, [0, 1, 2, 3, 4, 5, 6, 7, 8], None, records=2)  # five tables of three buckets
    assert sums.set_sizes is not None
    assert (sums.set_sizes >= [3, 1, 1] * 3).all() and (sums.set_sizes > [3, 1, 1] * 3).sum() > 5
    # Two parties whose pairs all collide: h is too large, so parts are too small, but a party knows its own labels.
    lost = counted(rows[:2], [0, 1], [0, 1], add=lambda vectors: np.zeros_like(plain_sum(vectors)))
    assert lost.set_sizes is not None and lost.set_sizes.tolist() == [3, 1]


def test_the_server_gets_sums_and_nothing_else() -> None:
    """What is sent are vectors whose sum is all that the rest of the code sees."""
    seen: list[np.ndarray] = []

    def add(vectors: Any) -> np.ndarray:
        total = plain_sum(vectors)
        seen.append(total)
        return total

    settings = CollectionSettings(by="sums")
    labels = TRAIN.labels
    sums = count(settings, TRAIN.features, labels, list("abcdefgh"), ENCODER, "exact", add=add)
    assert [vector.dtype for vector in seen] == [np.uint64] * 2
    words = sum(map(len, seen))
    assert sums.bytes_up == 8 * words * 8 and sums.bytes_down == 8 * len(seen[1]) * 8  # eight clients
    before, seen = seen, []
    settings = CollectionSettings(by="sums", records=labels.nnz)
    # The same vectors, label by label: owners of single labels, each of whom is a sender.
    single = [labels.multiply(np.arange(8) == u).tocsr() for u in range(8)]
    for own in single:
        own.eliminate_zeros()
        count(
            CollectionSettings(by="sums", records=labels.nnz),
            TRAIN.features,
            own,
            list("abcdefgh"),
            ENCODER,
            "exact",
            add=add,
        )
    assert sum(seen[0::2]).tolist() == before[0].tolist()  # type: ignore[union-attr]
    assert sum(seen[1::2]).tolist() == before[1].tolist()  # type: ignore[union-attr]


def test_the_mean_alone() -> None:
    data = fedalc.load_dataset("demo")
    ours = known(data.train, "sums", client={"set_size": "expected"})
    sizes = data.train.labels.getnnz(axis=1)
    assert isinstance(ours.labels, LabelCounts) and ours.set_sizes is None and ours.bytes_down == 0
    assert ours.labels.mean_set_size == pytest.approx(sizes[sizes > 0].mean(), rel=0.03)
    settings = fedalc.experiment({**EXACT, "client": {"set_size": "expected"}, "collection": {"by": "sums"}})
    method = simulated(settings, data.train, ours).method
    share = method.share(torch.arange(3), torch.arange(3))
    assert share.tolist() == pytest.approx([1 / ours.labels.mean_set_size] * 3)


def test_only_counts_travel_if_no_loss_uses_set_sizes() -> None:
    client = {"set_size": "ignored", "label_power": 0.5}
    ours = known(TRAIN, "sums", client=client)
    assert isinstance(ours.labels, LabelCounts) and ours.labels.mean_set_size is None
    assert ours.labels.counts.tolist() == TRAIN.labels.getnnz(axis=0).tolist()
    assert (ours.bytes_up, ours.bytes_down) == (8 * 8 * 8, 0) and "tables" not in ours.collection


@pytest.mark.usefixtures("small_tables")
def test_the_same_settings_give_the_same_collisions_and_a_key_file_gives_others(tmp_path: Path) -> None:
    Key(bytes(range(32))).write(tmp_path / "key")
    collection = {"records": 20, "collisions": 0.5}
    with pytest.warns(UserWarning, match="collection.records is 20"):
        one, same, other, keyed = (
            known(TRAIN, "sums", collection=collection | more, seed=seed).set_sizes
            for more, seed in (({}, 0), ({}, 0), ({}, 1), ({"key": str(tmp_path / "key")}, 0))
        )
    assert one is not None and same is not None and other is not None and keyed is not None
    assert (one == same).all() and (one != other).any() and (one != keyed).any()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "fedalc"}, "collection.by: fedalc learns from how often labels occur together"),
        ({"method": "fedalc-fixed"}, "collection.by: fedalc-fixed learns from how often"),
        ({"method": "ovr"}, "collection.by: ovr is centralised"),
        ({"collection": {"algorithm": "sha256"}}, "collection.by: sha256 uses no key"),
        ({"client": {"set_size": "expected"}, "privacy": {"epsilon": 1.0}}, "collection.by: noise needs label sets"),
        ({"engine": "flower"}, "collection.by: without masks each party's counts"),
        ({"collection": {"correlations": "file", "key": "key"}}, "collection.by: correlations from a file"),
        ({"collection": {"by": "psi"}}, "collection.by: psi counts pairs of labels"),
    ],
)
def test_what_does_not_go_with_sums_is_refused_by_name(keys: dict[str, Any], message: str) -> None:
    collection = {"by": "sums", **keys.pop("collection", {})}
    with pytest.raises(ConfigError, match=message):
        fedalc.experiment({"method": "fedalc-oneshot", **keys, "collection": collection})


def test_without_a_method_sums_mean_the_exact_methods() -> None:
    assert default_choice({"collection": {"by": "sums"}})["method"] == "fedalc-exact"
    assert default_choice({"collection": {"by": "sums"}}, tune=False)["method"] == "fedalc-oneshot"
    assert default_choice({"collection": {"by": "join"}}) == default_choice({}) != {}  # the join is the default
    assert default_choice({"collection": {"by": "psi"}}) == {}


def test_a_method_of_ones_own_must_declare_that_it_needs_correlations() -> None:
    settings = fedalc.experiment({**EXACT, "collection": {"by": "sums"}})
    method = simulated(settings, TRAIN, knowledge_for(settings, TRAIN)).method
    with pytest.raises(FedalcError, match="declare uses_labels = True"):
        method.from_labels(lambda correlations: pytest.fail("it has none"))
