"""Helpers that run after a fit in the tests of the oracles."""

from __future__ import annotations


class Counting:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def done(self, what: str) -> None:
        self.steps.append(what)

    def check(self) -> None: ...
