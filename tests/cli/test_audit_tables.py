"""The audit's tables keep every figure whole in a narrow terminal."""

from __future__ import annotations

import pytest

from fedalc.audit.answers import ALONE, PARTY, RULE, SUM
from fedalc.audit.inversion import Cell, Inversion, Row
from fedalc.audit.membership import Attacked
from fedalc.audit.statistics import Power
from fedalc.cli.audit_tables import inversion_table, membership_table
from fedalc.report.plain_tables import HIDDEN
from tests.report.test_plain_tables import printed

WIDTHS = (60, 80, 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_what_a_server_reconstructs(width: int) -> None:
    views = {view: Cell(0.1 + at / 10, at, 20) for at, view in enumerate((ALONE, RULE, PARTY, SUM))}
    row = Row(10, "chosen θ, 12 rounds", views, 0.17)
    shown = printed(inversion_table(Inversion((row,), (), 5, 16, ()), 10, 8, width), width)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    assert "0.40 3/20" in shown and "0.17" in shown
    assert ("0.10 0/20" in shown) == (HIDDEN not in shown) == (width > 60)


@pytest.mark.parametrize("width", WIDTHS)
def test_which_records_a_model_was_trained_on(width: int) -> None:
    power = Power(0.982, 0.957, 1.0, (0.19, None), 100, 100)
    shown = printed(membership_table([Attacked("a model with a name of its own", power, power)], width), width)
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    assert shown.count("0.982 (0.957-1.000)") == 2 and shown.count("19.0 %") == 2
    assert ("at 0.1 %" in shown.partition(HIDDEN)[0]) == (width > 60)
