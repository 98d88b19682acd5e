"""Servers and parties that cheat. Each is refused or named, and no single vector comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedalc.secure_sums import Disclosures, Identity, NotEnough, PartySum, Question, Refused, ServerSum, encoded
from fedalc.secure_sums import party as party_module
from fedalc.secure_sums.messages import Agreements, Announcement, Deal, Dealt, Keys, Parties, Revealed, Roster
from fedalc.secure_sums.party import CHECKS, keys_of, pair_key, self_key
from fedalc.secure_sums.primitives import add_mask, agreed_secret, combined, split
from tests.secure_sums.deployment import BITS, RUN, SECRET, Deployment, names_of, plain, question, vectors_of


def changed_roster(change: Callable[[Roster], Roster], count: int = 5) -> Deployment:
    """A deployment whose server changes the roster for all parties."""
    deployment = Deployment(count)
    for name in deployment.names:
        deployment.changed["shares", name] = lambda content: change(Roster.from_bytes(content)).to_bytes()
    return deployment


def refusals(deployment: Deployment, vectors: dict[str, np.ndarray] | None = None) -> dict[str, str]:
    """Run a sum that ends without a result, and return why parties refused."""
    with pytest.raises(NotEnough):
        deployment.sum_of(vectors or vectors_of(deployment.names))
    return deployment.server.problems


# --- the server and the keys ---


def put(roster: Roster, keys: Keys) -> Roster:
    """The roster with one party's keys replaced."""
    return replace(roster, members=tuple(keys if m.name == keys.name else m for m in roster.members))


def test_a_server_that_replays_a_key_is_refused_and_the_party_named() -> None:
    old = PartySum(Identity("party 02", RUN, SECRET), 1).make_keys(Disclosures({}))
    deployment = changed_roster(lambda roster: put(roster, Announcement.from_bytes(old).keys))
    deployment.server.seq = 2
    deployment.parties = {name: PartySum(identity, 2) for name, identity in deployment.identities.items()}
    problems = refusals(deployment)
    assert "the keys of party party 02 are not tagged for this sum" in problems["party 00"]
    assert "replayed" in problems["party 00"] and "party 02" in problems["party 04"]


def test_a_server_in_the_middle_is_refused() -> None:
    seeds = {purpose: bytes(16) for purpose in ("sealing", "masking", "self")}
    guess = keys_of(Identity("party 01", RUN, bytes(64)), 1, seeds, b"{}")
    problems = refusals(changed_roster(lambda roster: put(roster, guess)))
    assert all("party 01 are not tagged" in problems[name] for name in names_of(5))


def test_keys_of_another_run_are_refused() -> None:
    other = PartySum(Identity("party 01", "run-2", SECRET), 1).make_keys(Disclosures({}))
    problems = refusals(changed_roster(lambda roster: put(roster, Announcement.from_bytes(other).keys)))
    assert "party 01 are not tagged" in problems["party 03"]


def test_a_party_that_the_server_invents_is_refused() -> None:
    def invented(roster: Roster) -> Roster:
        members = (*roster.members, replace(roster.members[0], name="party 99"))
        return replace(roster, members=members, threshold=4)

    assert "party 99 are not tagged" in refusals(changed_roster(invented))["party 01"]


def test_a_party_twice_in_the_roster_is_refused() -> None:
    problems = refusals(changed_roster(lambda r: replace(r, members=(*r.members[:3], r.members[2]), threshold=3)))
    assert "a party twice" in problems["party 00"]


def test_own_keys_must_be_in_the_roster() -> None:
    problems = refusals(changed_roster(lambda roster: replace(roster, members=roster.members[1:])))
    assert "does not have this party's own keys" in problems["party 00"]


@pytest.mark.parametrize("threshold", [0, 1, 2, 6])
def test_a_threshold_of_half_or_more_than_all_is_refused(threshold: int) -> None:
    problems = refusals(changed_roster(lambda roster: replace(roster, threshold=threshold), 4))
    assert f"a threshold of {threshold} for 4 parties" in problems["party 00"]


def test_a_roster_of_two_is_refused_by_parties() -> None:
    def two(roster: Roster) -> Roster:
        return replace(roster, members=roster.members[:2], threshold=2)

    assert "a sum over 2 parties" in refusals(changed_roster(two))["party 00"]


def test_a_party_with_another_key_is_named_by_all_others() -> None:
    deployment = Deployment(4)
    deployment.identities["party 02"] = Identity("party 02", RUN, bytes(reversed(range(64))))
    deployment.parties["party 02"] = PartySum(deployment.identities["party 02"], 1)
    problems = refusals(deployment)
    assert "party 02 are not tagged" in problems["party 00"] and "another key" in problems["party 03"]


# --- the server and the lists ---


def masked_deployment(count: int = 5, **options: int) -> tuple[Deployment, dict[str, np.ndarray]]:
    """A deployment after step 3."""
    deployment, vectors = Deployment(count, **options), vectors_of(names_of(count))
    with pytest.raises(_Stop):
        deployment.server.survivors = _stop  # type: ignore[method-assign]
        deployment.sum_of(vectors)
    del deployment.server.survivors  # type: ignore[method-assign]
    return deployment, vectors


class _Stop(Exception):
    pass


def _stop() -> bytes:
    raise _Stop


def test_a_server_that_asks_for_both_shares_of_a_party_is_refused() -> None:
    deployment, _ = masked_deployment()
    server, party = deployment.server, deployment.parties["party 00"]
    everyone, without = server.survivors(), Parties((0, 1, 2, 3)).to_bytes()
    for name in deployment.names:
        server.add_agreement(name, deployment.parties[name].agree(everyone, deployment.disclosures[name]))
    with pytest.raises(Refused, match="asks for step 'agree' of sum 1, and the last step of it was 'agree'"):
        party.agree(without, Disclosures({}))  # a second list, in which party 04 is gone
    given = Revealed.from_bytes(party.reveal(server.agreements(), deployment.disclosures["party 00"]), 5)
    assert given.shares[4] == party._shares[4][0] != party._shares[4][1]
    with pytest.raises(Refused, match="step 'unmask' of sum 1, and the last step of it was 'unmask'"):
        party.reveal(server.agreements(), Disclosures({}))


def test_two_lists_of_survivors_are_never_both_unmasked() -> None:
    """The server tells two halves different lists. Neither gets enough agreements, whatever it shows to whom."""
    deployment, _ = masked_deployment(6)
    lists = Parties((0, 1, 2, 3, 4)), Parties((0, 1, 2, 3, 5))
    told = dict(zip(deployment.names, (0, 0, 0, 1, 0, 1), strict=True))
    tags = {}
    for name, which in told.items():
        tags[name] = deployment.parties[name].agree(lists[which].to_bytes(), deployment.disclosures[name])
    refused = 0
    for name in deployment.names[:4]:
        shown = Agreements((0, 1, 2, 3), tuple(tags[other] for other in deployment.names[:4])).to_bytes()
        with pytest.raises(Refused, match=r"agreements to what this party got; 4 are needed") as error:
            deployment.parties[name].reveal(shown, deployment.disclosures[name])
        assert "lying: party 0" in str(error.value)
        refused += 1
    assert refused == 4


@pytest.mark.parametrize(
    ("survivors", "problem"),
    [
        ((0, 1), "a sum over 2 parties; at least 3 are needed"),
        ((1, 2, 3), "a sum that this party is not part of"),
        ((0, 1, 7), "a party that is not in the list"),
    ],
)
def test_bad_lists_of_survivors(survivors: tuple[int, ...], problem: str) -> None:
    deployment, _ = masked_deployment()
    with pytest.raises(Refused, match=problem):
        deployment.parties["party 00"].agree(Parties(survivors).to_bytes(), Disclosures({}))


def test_a_survivor_twice_does_not_count_twice() -> None:
    deployment, _ = masked_deployment()
    with pytest.raises(Refused, match="a party twice"):
        deployment.parties["party 00"].agree(Parties((0, 1, 1)).to_bytes(), Disclosures({}))


def test_too_few_or_forged_or_foreign_agreements() -> None:
    for shown, problem in (
        (lambda tags: Agreements((0, 1), tags[:2]), "shows 2 agreements"),
        (lambda tags: Agreements((0, 1, 2), (*tags[:2], bytes(32))), "shows 2 agreements.*lying: party 02"),
        (lambda tags: Agreements((0, 1, 2), (tags[0], tags[1], tags[1])), "shows 2 agreements.*lying: party 02"),
        (lambda tags: Agreements((0, 1, 4), tags[:3]), "not a survivor"),
    ):
        deployment, _ = masked_deployment()
        listed = Parties((0, 1, 2, 3)).to_bytes()
        tags = tuple(deployment.parties[n].agree(listed, deployment.disclosures[n]) for n in deployment.names[:4])
        with pytest.raises(Refused, match=problem):
            deployment.parties["party 00"].reveal(shown(tags).to_bytes(), Disclosures({}))


def test_a_server_that_drops_a_party_twice_is_refused() -> None:
    """Sums over all and over all but one, of the same question, differ by that one's vector."""
    first, vectors = Deployment(5, seq=1), vectors_of(names_of(5))
    first.sum_of(vectors)
    second = Deployment(5, seq=2)
    second.disclosures, second.lost = first.disclosures, {("masked", "party 04")}
    with pytest.raises(NotEnough, match="0 of 4 parties agreed"):
        second.sum_of(vectors)
    assert "other parties than before" in second.server.problems["party 00"]
    third = Deployment(5, seq=3)  # the same parties again: nothing new
    third.disclosures = first.disclosures
    assert np.array_equal(third.sum_of(vectors), plain(vectors.values()))


def test_another_round_number_does_not_make_it_another_question() -> None:
    deployment, vectors = Deployment(4), vectors_of(names_of(4))
    deployment.total(question(5, b"round 1", b"theta"), vectors.__getitem__)
    again = Deployment(4, seq=2)
    again.disclosures, again.lost = deployment.disclosures, {("shares", "party 01")}
    with pytest.raises(NotEnough):
        again.total(question(5, b"round 2", b"theta"), vectors.__getitem__)
    assert "other parties than before" in again.server.problems["party 00"]


def test_both_sums_begun_before_either_is_unmasked() -> None:
    """Parties of the second would not know the list of the first."""
    disclosures = Disclosures({})
    for seq, survivors in ((1, (0, 1, 2, 3, 4)), (2, (0, 1, 2, 3))):
        deployment, _ = masked_deployment(seq=seq)
        party, listed = deployment.parties["party 00"], Parties(survivors).to_bytes()
        if seq == 1:
            party.agree(listed, disclosures)
        else:
            with pytest.raises(Refused, match="began before another one ended"):
                party.agree(listed, disclosures)


# --- the server tells parties different things ---


def test_a_server_that_asks_one_party_something_else_gets_noise_and_is_noticed() -> None:
    deployment, vectors = Deployment(5), vectors_of(names_of(5), 200)
    asked = deployment.parties["party 03"]
    mask = type(asked).mask
    deployment._come = lambda name: None  # type: ignore[method-assign] - keep the object that is changed here
    asked.mask = lambda dealt, q, *more: mask(asked, dealt, replace(q, content=b"another theta"), *more)  # type: ignore[method-assign]
    with pytest.raises(Refused, match="the masks do not cancel"):
        deployment.sum_of(vectors)
    assert deployment.parties["party 00"].disagreeing == ("party 03",)
    assert len(asked.disagreeing) == 4
    assert deployment.server.problems["party 03"] == "party 00 says that it agreed to something else"


def told_fewer_dealers(dealers: tuple[int, ...]) -> Deployment:
    """A server that tells party 06 that only these dealt shares. All of them but party 06 are then lost."""
    deployment = Deployment(7)

    def only(content: bytes) -> bytes:
        dealt = Dealt.from_bytes(content)
        places = [dealer for dealer in dealers if dealer != 6]  # its own entry is the last one, and is left out
        parts = (tuple(part[place] for place in places) for part in (dealt.boxes, dealt.hashes))
        return Dealt(dealers, *parts).to_bytes()

    deployment.changed["masked", "party 06"] = only
    deployment.lost = {("masked", f"party 0{dealer}") for dealer in dealers if dealer != 6}
    return deployment


def test_a_server_cannot_isolate_a_party_by_another_list_of_dealers() -> None:
    """Told that only two others dealt, a party would mask for these two alone. If all others then count these two as
    gone, the server gets their seeds and with them that party's vector (the next test does it). So a party masks for
    enough others or not at all, and agreements are about the list of dealers too."""
    deployment, vectors = told_fewer_dealers((4, 5, 6)), vectors_of(names_of(7))
    total = deployment.sum_of(vectors)
    assert "masked for 3 parties; at least 4 are needed" in deployment.server.problems["party 06"]
    assert np.array_equal(total, plain(vectors[name] for name in deployment.names[:4]))

    larger = told_fewer_dealers((3, 4, 5, 6))  # as many as the party accepts: then too few others are left to agree
    with pytest.raises(NotEnough, match="3 of 4 parties agreed"):
        larger.sum_of(vectors)
    assert "not in the list that this party's vector is masked for" in larger.server.problems["party 06"]


def test_without_that_rule_the_server_would_have_the_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party_module, "max", lambda *numbers: 0, raising=False)  # the fewest others to mask for
    deployment, vectors = told_fewer_dealers((4, 5, 6)), vectors_of(names_of(7))
    server, sent = deployment.server, {}
    add = server.add_masked

    def watched(name: str, masked: np.ndarray, complaints: bytes) -> None:
        sent[name] = masked.copy()
        add(name, masked, complaints)

    server.add_masked = watched  # type: ignore[method-assign]
    with pytest.raises(Refused, match="the masks do not cancel"):
        deployment.sum_of(vectors)
    alone, session, members = sent["party 06"], server._session, server._roster.members
    add_mask(alone, self_key(session, combined(server._good_shares(6, 6, 0))), -1)
    for gone in (4, 5):
        secret = agreed_secret(combined(server._good_shares(gone, gone, 1)), "masking", members[6].masking)
        add_mask(alone, pair_key(session, (4, 5, 6), question(5).digest, secret), 1)
    assert np.array_equal(alone[:-CHECKS], encoded(vectors["party 06"], BITS))


def test_shares_cannot_be_passed_to_another_party_or_sum() -> None:
    deployment = Deployment(4)

    def swapped(content: bytes) -> bytes:
        dealt = Dealt.from_bytes(content)
        return Dealt(dealt.dealers, (dealt.boxes[1], dealt.boxes[0], dealt.boxes[2]), dealt.hashes).to_bytes()

    deployment.changed["masked", "party 00"] = swapped
    vectors = vectors_of(deployment.names)
    assert np.array_equal(deployment.sum_of(vectors), plain(vectors.values()))  # the other three are enough
    assert "its shares for party 00 cannot be used" in deployment.server.problems["party 01"]


# --- parties ---


def test_a_party_that_lies_about_shares_is_named_and_the_sum_is_right() -> None:
    deployment = Deployment(5)

    def lie(content: bytes) -> bytes:
        revealed = Revealed.from_bytes(content, 5)
        return replace(revealed, shares=(bytes(16), *revealed.shares[1:])).to_bytes()

    deployment.answers["unmask", "party 01"] = lie
    vectors = vectors_of(deployment.names)
    assert np.array_equal(deployment.sum_of(vectors), plain(vectors.values()))
    assert deployment.server.problems == {"party 01": "gave a false share of party 00's seed"}


def test_too_many_liars_end_the_sum_and_all_are_named() -> None:
    deployment = Deployment(5)
    for name in ("party 01", "party 02", "party 03"):
        deployment.answers["unmask", name] = lambda content: Revealed(
            (bytes(16),) * 5, Revealed.from_bytes(content, 5).disagreeing
        ).to_bytes()
    with pytest.raises(NotEnough, match=r"2 good shares of party 00's seed; 3 are needed.*party 01: gave a false"):
        deployment.sum_of(vectors_of(deployment.names))
    assert set(deployment.server.problems) == {"party 01", "party 02", "party 03"}


@pytest.mark.parametrize("lost", [False, True])
def test_a_dealer_of_wrong_shares_is_named(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shares fit their hashes, but not the seed that it announced."""
    deployment = Deployment(5)
    deal = PartySum.deal_shares

    def other_seed(self: PartySum, roster: bytes) -> bytes:
        liar = self.identity.name == "party 02"
        monkeypatch.setattr(party_module, "split", lambda seed, t, n: split(bytes(16) if liar else seed, t, n))
        return deal(self, roster)

    monkeypatch.setattr(PartySum, "deal_shares", other_seed)
    if lost:
        deployment.lost = {("masked", "party 02")}
    with pytest.raises(Refused, match="party party 02 dealt shares of another seed") as error:
        deployment.sum_of(vectors_of(deployment.names))
    assert error.value.accused == "party 02"


def test_a_dealer_whose_hashes_do_not_fit_is_complained_about_by_all() -> None:
    deployment = Deployment(5)

    def wrong(content: bytes) -> bytes:
        deal = Deal.from_bytes(content, 5)
        return replace(deal, hashes=(bytes(64),) * 5).to_bytes()

    deployment.answers["shares", "party 02"] = wrong
    with pytest.raises(NotEnough, match="0 good shares of party 02's seed"):
        deployment.sum_of(vectors_of(deployment.names))
    assert set(deployment.server.problems) == {"party 02"}


def test_a_false_agreement_does_not_stop_the_sum() -> None:
    deployment = Deployment(5)
    deployment.answers["agree", "party 04"] = lambda content: bytes(32)
    vectors = vectors_of(deployment.names)
    assert np.array_equal(deployment.sum_of(vectors), plain(vectors.values()))
    assert "agreed to something else" in deployment.server.problems["party 04"]


def test_a_party_that_sends_keys_of_another_is_refused() -> None:
    other = PartySum(Identity("party 01", RUN, SECRET), 1).make_keys(Disclosures({}))
    with pytest.raises(Refused, match="sends keys of 'party 01'"):
        ServerSum(RUN, 1).add_keys("party 00", other)


def test_a_masked_vector_twice_or_of_another_shape_is_refused() -> None:
    deployment, _ = masked_deployment()
    empty = Parties(()).to_bytes()
    with pytest.raises(Refused, match="not asked for"):
        deployment.server.add_masked("party 00", np.zeros(6, np.uint64), empty)
    fresh = Deployment(3)
    fresh.lost = {("masked", "party 00")}
    with pytest.raises(NotEnough):
        fresh.sum_of(vectors_of(fresh.names))
    with pytest.raises(Refused, match="a masked vector of"):
        fresh.server.add_masked("party 00", np.zeros(5, np.uint64), empty)


def test_steps_out_of_order_are_refused() -> None:
    party = PartySum(Identity("a", RUN, SECRET), 1)
    with pytest.raises(Refused, match="asks for step 'unmask' of sum 1, and the last step of it was 'none'"):
        party.reveal(b"", Disclosures({}))
    party.make_keys(Disclosures({}))
    with pytest.raises(Refused, match="asks for step 'keys' of sum 1, and the last step of it was 'keys'"):
        party.make_keys(Disclosures({}))


# --- noised numbers ---


def test_noised_numbers_are_unmasked_only_with_all_parties_that_share_the_noise() -> None:
    """With real numbers the four that are left would do."""
    vectors = {name: np.full(5, number) for number, name in enumerate(names_of(5))}
    noised = Question(b"noised", b"noised", 5, 0, noised=True)
    for lost, asked in ((False, noised), (True, replace(noised, noised=False)), (True, noised)):
        deployment = Deployment(5)
        if lost:
            deployment.lost.add(("masked", "party 03"))
        if lost and asked.noised:
            with pytest.raises(NotEnough):
                deployment.total(asked, lambda name: vectors[name])
            assert all(
                "too little of it would be left" in deployment.server.problems[name]
                for name in names_of(5)
                if name != "party 03"
            )
        else:
            total = deployment.total(asked, lambda name: vectors[name])
            assert total.view(np.int64).tolist() == [10 - 3 * lost] * 5


# --- sealed numbers ---


@pytest.mark.parametrize("step", ["shares", "masked"])
def test_sealed_numbers_are_unmasked_only_with_all_parties_that_they_are_sealed_for(step: str) -> None:
    """Seals depend on how many parties sum: of a sum over fewer, the server could make up multiples that fit."""
    sealed = Question(b"sealed", b"sealed", 5, 0, sealed=True)
    deployment = Deployment(5)
    deployment.lost.add((step, "party 03"))
    with pytest.raises(NotEnough):
        deployment.total(sealed, lambda name: np.ones(5))
    problem = {"shares": "masked for 4 parties, and they are sealed for 5", "masked": "5 sealed them"}[step]
    others = [name for name in names_of(5) if name != "party 03"]
    assert all(problem in deployment.server.problems[name] for name in others)
    assert Deployment(5).total(sealed, lambda name: np.ones(5)).view(np.int64).tolist() == [5] * 5
