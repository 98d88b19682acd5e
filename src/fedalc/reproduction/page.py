"""The page of a reproduced table: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedalc.report.inline import figure_svg
from fedalc.report.page import NAME, write_template
from fedalc.reproduction import table_text as text
from fedalc.reproduction.figures import CAPTIONS
from fedalc.reproduction.results import Outcome


def write_page(outcome: Outcome, figures: Mapping[str, Any], folder: Path) -> Path:
    return write_template(
        folder / NAME,
        "reproduction.html",
        title=outcome.title,
        sentence=text.sentence(outcome),
        command=outcome.command,
        columns=text.columns(outcome),
        names=text.names(outcome),
        strengths=text.strengths(outcome),
        seeds=text.seed_counts(outcome),
        remarks=[*text.remarks(outcome), *text.versions(outcome)],
        figures=[
            {"caption": CAPTIONS[name], "svg": Markup(figure_svg(figure, name)), "width": 7 * figure.get_figwidth()}
            for name, figure in figures.items()
        ],
        versions={},  # in the remarks: there can be several sets
        panels=[],
        missing=[],
        looks={},
        ringed=False,
    )
