"""Whatever drops out, a secure sum is the plain fixed-point sum over those that are left, bit for bit, or refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalc.errors import FedalcError
from fedalc.secure_sums import NotEnough, Overflow, Refused, decoded, default_threshold, encoded, largest
from fedalc.secure_sums.fixed_point import PRIME, coefficients, hidden_residue, residue, whole, wrapped
from fedalc.secure_sums.party import CHECKS, STEPS
from tests.secure_sums.deployment import BITS, Deployment, plain, vectors_of


@pytest.mark.long
@given(
    count=st.integers(3, 7),
    lost=st.dictionaries(st.integers(0, 6), st.sampled_from(STEPS), max_size=6),
    length=st.integers(0, 40),
    seed=st.integers(0, 1000),
    order=st.randoms(use_true_random=False),
    more=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_any_dropouts_leave_the_plain_sum_or_a_refusal(
    count: int, lost: dict[int, str], length: int, seed: int, order: object, more: int
) -> None:
    threshold = min(count, default_threshold(count) + more)
    deployment = Deployment(count, threshold=threshold)
    lost = {number: step for number, step in lost.items() if number < count}
    deployment.lost = {(step, deployment.names[number]) for number, step in lost.items()}
    shuffled = list(deployment.parties.items())
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    deployment.parties = dict(shuffled)
    vectors = vectors_of(deployment.names, length, seed)

    left_after = {
        step: [n for n in range(count) if lost.get(n) not in STEPS[: STEPS.index(step) + 1]] for step in STEPS
    }
    in_roster = len(left_after["keys"])
    needed = max(3, threshold)
    enough = threshold <= in_roster < 2 * threshold or in_roster == count
    enough = enough and all(len(left_after[step]) >= needed for step in ("keys", "shares", "masked"))
    enough = enough and all(len(left_after[step]) >= threshold for step in ("agree", "unmask"))
    if not enough:
        with pytest.raises(NotEnough):
            deployment.sum_of(vectors)
        return
    total = deployment.sum_of(vectors)
    survivors = [deployment.names[number] for number in left_after["masked"]]
    assert list(deployment.server.survivor_names) == survivors
    assert np.array_equal(total, plain(vectors[name] for name in survivors))


@pytest.mark.parametrize("step", STEPS)
def test_one_party_lost_at_each_step(step: str) -> None:
    deployment = Deployment(5)
    deployment.lost = {(step, "party 02")}
    vectors = vectors_of(deployment.names, 1000)
    total = deployment.sum_of(vectors)
    is_in = step in ("agree", "unmask")
    left = [name for name in deployment.names if name != "party 02" or is_in]
    assert np.array_equal(total, plain(vectors[name] for name in left))
    assert deployment.server.problems == {"party 02": "no answer in time"}


def test_the_sum_in_numbers_by_hand() -> None:
    deployment = Deployment(3)
    vectors = dict(zip(deployment.names, np.array([[1.5, -2.0], [0.25, 0.0], [-3.0, 2.0**-21]]), strict=True))
    total = decoded(deployment.sum_of(vectors), BITS)
    assert total.tolist() == [-1.25, -2.0]  # 2^-21 rounds to the even neighbour, 0


def test_masked_vectors_look_like_noise_and_change_every_time() -> None:
    vectors = {name: np.zeros(4096) for name in Deployment(4).names}
    seen = []
    for _ in range(2):
        deployment = Deployment(4)
        original = deployment.server.add_masked
        deployment.server.add_masked = lambda name, masked, bad, add=original: (  # type: ignore[method-assign,misc]
            seen.append(masked.copy()),
            add(name, masked, bad),
        )
        assert not deployment.sum_of(vectors).any()
    assert len({part.tobytes() for part in seen}) == 8
    for part in seen:
        bits = np.unpackbits(part.view(np.uint8)).mean()
        assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(4097 * 64)


def test_the_order_of_the_masked_vectors_does_not_matter() -> None:
    vectors = vectors_of(Deployment(6).names, 100)
    backwards = Deployment(6)
    names = backwards.server.begin_masking
    backwards.server.begin_masking = lambda q: tuple(reversed(names(q)))  # type: ignore[method-assign]
    assert np.array_equal(backwards.sum_of(vectors), Deployment(6).sum_of(vectors))


def test_fewer_than_three_parties_are_refused() -> None:
    with pytest.raises(NotEnough, match="2 parties sent keys; a secure sum needs 3"):
        Deployment(2).sum_of(vectors_of(["party 00", "party 01"]))


def test_a_survivor_that_is_lost_with_three_parties_ends_the_sum() -> None:
    deployment = Deployment(3)
    deployment.lost = {("masked", "party 01")}
    with pytest.raises(NotEnough, match="2 parties sent masked vectors; this secure sum needs 3"):
        deployment.sum_of(vectors_of(deployment.names))


TOO_LARGE = 2.0 * largest(BITS)


@pytest.mark.parametrize("too_large", [TOO_LARGE, -TOO_LARGE, 1e300, np.inf, np.nan])
def test_overflow_is_refused_without_a_name(too_large: float) -> None:
    """By a name the server could find out a party's largest number, question by question."""
    deployment = Deployment(4)
    vectors = vectors_of(deployment.names)
    vectors["party 03"][2] = too_large
    with pytest.raises(Overflow, match=r"^overflow.*\(secure_sums\.bits\), and this one has larger numbers"):
        deployment.sum_of(vectors)
    assert not deployment.server.problems


def unmasked(vectors: dict[str, np.ndarray]) -> np.ndarray:
    """What a server that cheats looks at although it should not use it: the sum modulo 2^64, and by how much the
    residue that the parties sent differs from that of the true sum. (Its coefficients differ from sum to sum.)"""
    deployment = Deployment(len(vectors))
    with pytest.raises(Overflow) as caught:
        deployment.sum_of(vectors)
    *_, last = caught.traceback
    total: np.ndarray = last.frame.f_locals["total"]
    exact = [sum(map(Fraction, column)) * 2**BITS for column in np.nan_to_num(list(vectors.values())).T]
    k = coefficients(0, len(exact), last.frame.f_locals["session"]).tolist()
    off = (int(total[-2]) - sum(a * round(b) for a, b in zip(k, exact, strict=True))) % PRIME
    return np.append(total[:-CHECKS], [np.uint64(off), total[-1]])


def test_a_sum_that_overflows_shows_the_sum_and_nothing_else() -> None:
    """Whose numbers are too large, and how many parties', does not show: only the sum decides what is unmasked."""
    vectors = vectors_of(Deployment(4).names)
    others = dict(zip(vectors, [np.zeros(5), np.zeros(5), np.zeros(5), np.zeros(5)], strict=True))
    vectors = {name: np.rint(vector) for name, vector in vectors.items()}
    vectors["party 03"][2] = TOO_LARGE
    for vector in vectors.values():  # the same sum, of parts that all fit but for one number
        others["party 01"] = others["party 01"] + vector
    others["party 01"][2], others["party 02"][2] = TOO_LARGE / 2, sum(v[2] for v in vectors.values()) - TOO_LARGE / 2
    assert sum(vectors.values()).tolist() == sum(others.values()).tolist()  # type: ignore[union-attr]
    assert np.array_equal(unmasked(vectors), unmasked(others))


def test_random_numbers_take_the_place_of_those_that_are_not_finite() -> None:
    vectors = vectors_of(Deployment(4).names)
    others = plain([vectors[name] for name in list(vectors)[:3]])
    vectors["party 03"][2] = np.nan
    assert not (unmasked(vectors)[:5] == others).any()


def test_large_numbers_of_parties_that_cancel_in_the_sum_are_no_overflow() -> None:
    deployment = Deployment(4)
    vectors = {name: np.rint(vector) for name, vector in vectors_of(deployment.names).items()}
    vectors["party 02"][1] += 2.0**50
    vectors["party 03"][1] -= 2.0**50
    exact = np.sum(list(vectors.values()), axis=0)
    assert np.array_equal(decoded(deployment.sum_of(vectors), BITS), exact)


@given(st.lists(st.floats(-(2.0**100), 2.0**100), min_size=1, max_size=9), st.integers(0, 60))
@settings(deadline=None)
def test_numbers_of_any_size_are_wrapped_exactly(numbers: list[float], bits: int) -> None:
    """Against Python's own whole numbers."""
    exact = [round(Fraction(one) * 2**bits) for one in numbers]
    units = whole(np.array(numbers), bits)
    assert wrapped(units).tolist() == [one % 2**64 for one in exact]
    k = coefficients(0, len(exact), b"session").tolist()
    assert residue(units, b"session") == sum(map(int.__mul__, k, exact)) % PRIME


def test_the_residue_of_many_numbers() -> None:
    """More than one block, and the largest whole numbers."""
    draw = np.random.default_rng(0)
    units = draw.integers(-(2**63), 2**63 - 1, 200_000, endpoint=True)
    k = coefficients(0, len(units), b"session").tolist()
    assert residue(units, b"session") == sum(map(int.__mul__, k, units.tolist())) % PRIME


@pytest.mark.parametrize("pattern", [[1.2e13, -1.2e13, -1.2e13, 1.2e13], [1.2e13, -1.2e13], [1.2e13] * 8])
def test_an_overflow_with_a_pattern_is_noticed(pattern: list[float]) -> None:
    """With coefficients 1, 2, 3, … the wraps of the first one would add up to 0."""
    deployment = Deployment(3)
    vectors = {name: np.full(len(pattern), 0.5) for name in deployment.names}
    vectors["party 01"] = np.array(pattern)
    with pytest.raises(Overflow):
        deployment.sum_of(vectors)


def test_coefficients_differ_by_place_and_session() -> None:
    k = coefficients(0, 10_000, b"one session")
    assert len(np.unique(k)) > 9_990 and k.min() >= 0 and k.max() <= PRIME
    assert np.array_equal(coefficients(5_000, 10_000, b"one session"), k[5_000:])
    assert (coefficients(0, 10_000, b"another one") == k).sum() < 5


@pytest.mark.parametrize("parties", [3, 1000])
def test_a_hidden_residue_is_random_and_does_not_wrap(parties: int) -> None:
    drawn = {hidden_residue(5, parties) for _ in range(100)}
    assert len(drawn) == 100 and all(one % PRIME == 5 and parties * one < 2**63 for one in drawn)


def test_fixed_point_outside_its_range_is_refused() -> None:
    with pytest.raises(Refused, match="valid are 0 to 60"):
        encoded(np.zeros(1), 61)


def test_a_vector_of_another_length_is_refused() -> None:
    deployment = Deployment(4)
    vectors = vectors_of(deployment.names, 6)
    vectors["party 01"] = np.zeros(5)
    deployment.sum_of(vectors)
    assert "its vector has 5 numbers, and the question says 6" in deployment.server.problems["party 01"]


def test_the_saved_state_has_no_parties_key_and_is_whole() -> None:
    deployment = Deployment(3)
    deployment.sum_of(vectors_of(deployment.names))
    for name, party in deployment.parties.items():
        saved = party.saved()
        assert deployment.identities[name].secret.hex() not in saved
        assert type(party).restored(party.identity, saved).saved() == saved
        assert "secret" not in repr(party.identity)


def test_without_the_libraries_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedalc.secure_sums.primitives.Shamir", None)
    with pytest.raises(FedalcError, match=r"pip install 'fedalc\[flower\]'"):
        Deployment(3)


def test_whole_numbers_are_taken_as_they_are() -> None:
    """A double would lose the last bits of these."""
    numbers = np.array([2**59 + 1, -(2**59) - 1])
    assert encoded(numbers, 0).view(np.int64).tolist() == numbers.tolist()


def test_whole_numbers_of_64_bits_are_left_as_they_are() -> None:
    """Packed counts use all bits, which a real number could not hold."""
    packed = np.array([2**64 - 1, 2**53 + 1, 0], dtype=np.uint64)
    np.testing.assert_array_equal(encoded(packed, 0), packed)
    assert (encoded(packed, 0) + encoded(packed, 0)).tolist() == [2**64 - 2, 2**54 + 2, 0]
