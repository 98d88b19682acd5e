"""What follows a fit in the tests."""

from __future__ import annotations


class Counting:
    def __init__(self) -> None:
        self.steps: list[str] = []

    def done(self, what: str) -> None:
        self.steps.append(what)

    def check(self) -> None: ...
