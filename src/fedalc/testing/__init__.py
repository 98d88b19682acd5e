"""Checks for methods that you write: `fedalc.testing.check_method("mine")` runs the engines' equality tests on it."""

from __future__ import annotations

from fedalc.testing.check_method import check_method
from fedalc.testing.engines import assert_engines_equal

__all__ = ["assert_engines_equal", "check_method"]
