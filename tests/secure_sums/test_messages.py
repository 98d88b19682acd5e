"""Messages come back as they were; anything else is refused before memory is taken for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedalc.secure_sums import Refused
from fedalc.secure_sums.messages import (
    Agreements,
    Announcement,
    Deal,
    Dealt,
    Keys,
    Parties,
    Revealed,
    Roster,
    history_digest,
)

KEYS = Keys("Klinik Süd", b"s" * 32, b"m" * 32, b"c" * 32, b"h" * 32, b"t" * 32)
MESSAGES: list[tuple[Any, Callable[[bytes], Any]]] = [
    (Announcement(replace(KEYS, history=history_digest(b"{}")), b"{}"), Announcement.from_bytes),
    (Roster(2, (KEYS, KEYS, KEYS)), Roster.from_bytes),
    (Deal((b"b" * 48,) * 2, (b"h" * 64,) * 3), lambda content: Deal.from_bytes(content, 3)),
    (Dealt((0, 2, 5), (b"b" * 48,) * 2, (b"h" * 64,) * 2), Dealt.from_bytes),
    (Parties((1, 3)), Parties.from_bytes),
    (Parties(()), Parties.from_bytes),
    (Agreements((0, 4), (b"t" * 32,) * 2), Agreements.from_bytes),
    (Revealed((b"s" * 16, None, b"r" * 16), (2,)), lambda content: Revealed.from_bytes(content, 3)),
]


@pytest.mark.parametrize(("message", "read"), MESSAGES)
def test_a_message_comes_back(message: Any, read: Callable[[bytes], Any]) -> None:
    content = message.to_bytes()
    assert read(content) == message
    with pytest.raises(Refused):
        read(content + b"\0")
    for size in range(len(content)):
        with pytest.raises(Refused):
            read(content[:size])


@pytest.mark.parametrize(("message", "read"), MESSAGES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_changed_bytes_are_read_or_refused(message: Any, read: Callable[[bytes], Any], data: st.DataObject) -> None:
    content = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        again = read(bytes(content))
    except Refused:
        return
    assert again.to_bytes() == content or isinstance(again, Revealed)  # an unknown share's bytes do not matter


def test_a_count_beyond_the_message_is_refused() -> None:
    with pytest.raises(Refused, match="cut off"):
        Parties.from_bytes((999).to_bytes(4, "little"))
    with pytest.raises(Refused, match="4294967295 where at most 1000"):
        Parties.from_bytes(b"\xff" * 8)
