"""`fedalc settings`: every setting, with its meaning, values and defaults, and who uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedalc.core.registry import METHODS, ORACLES
from fedalc.errors import ConfigError, FedalcError

if TYPE_CHECKING:
    from fedalc.config.describe import Defaults, Section, Setting


def settings(
    name: Annotated[
        str | None, typer.Argument(help="a setting or a section, such as server.ridge or server (default: all)")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="only settings that this method uses, with its own defaults")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the page docs/settings.md")] = False,
) -> None:
    """Explain settings: meaning, values, default per preset, and which methods use them."""
    if method is not None and (problem := METHODS.problem(method)):
        raise ConfigError(problem, "--method")
    if as_markdown and (name or method or as_json):
        raise FedalcError("--markdown prints all settings: give nothing else with it")
    from fedalc.config.describe import Section, all_sections, find  # loads torch

    found = None if name is None else find(name)
    sections = all_sections() if found is None else (found,) if isinstance(found, Section) else ()
    chosen = found if isinstance(found, list) else [one for section in sections for one in section.settings]
    if method is not None:
        chosen = [one for one in chosen if one.methods is None or method in one.methods]
        if not chosen:
            raise FedalcError(f"{method} does not use {name}")
    if as_json:
        typer.echo(json.dumps([_plain(one) for one in chosen], indent=1, ensure_ascii=False))
    elif as_markdown:
        typer.echo(markdown_page(all_sections()), nl=False)
    elif isinstance(found, list):
        for one in chosen:
            _show_one(Console(highlight=False), one)
    else:
        _show_sections(Console(highlight=False), sections, chosen, method)


def _plain(setting: Setting) -> dict[str, Any]:
    return {key: value for key, value in asdict(setting).items() if not (key == "presets" and not value)}


def _show_sections(
    console: Console, sections: Sequence[Section], chosen: Sequence[Setting], method: str | None
) -> None:
    from fedalc.config.describe import written

    wanted = {one.name for one in chosen}
    for section in sections:
        settings = [one for one in section.settings if one.name in wanted]
        if not settings:
            continue
        if section.name:
            console.print(Text(f"[{section.name}]", style="bold"), Text(section.meaning, style="dim"))
        table = Table("setting", "default", "meaning", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.columns[0].no_wrap, table.columns[2].overflow = True, "fold"
        table.columns[0].min_width = max(len(one.name) for one in settings)
        for one in settings:
            default = _default(one, method)
            table.add_row(one.name, Text(written(default)), Text(one.meaning))
        console.print(table)
        console.print()
    console.print(
        f"Defaults: preset strong{f', method {method}' if method else ''}. More about one: fedalc settings NAME. "
        "Change one: fedalc train --set NAME=VALUE",
        markup=False,
    )


def _default(setting: Setting, method: str | None) -> Any:
    strong = setting.presets.get("strong")
    if strong is None:
        return setting.default
    return strong.methods.get(method, strong.value) if method is not None else strong.value


def _show_one(console: Console, setting: Setting) -> None:
    console.print(Text(setting.name, style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in _facts(setting):
        table.add_row(heading, Text(text))
    for preset, line in preset_lines(setting):
        table.add_row(f"preset {preset}", Text(line))
    console.print(table)
    console.print()


def _facts(setting: Setting) -> list[tuple[str, str]]:
    from fedalc.config.describe import written

    lines = [("meaning", setting.meaning), ("values", setting.values)]
    if not setting.presets:
        lines.append(("default", written(setting.default)))
    lines.append(("used by", users(setting)))
    return lines + [("only with", condition) for condition in setting.only_with]


def users(setting: Setting) -> str:
    """Say which methods and encoders use a setting."""
    federated, centralised = list(METHODS), list(ORACLES)
    if setting.methods is None:
        text = "all methods"
    elif set(federated) <= set(setting.methods):
        more = [name for name in setting.methods if name in centralised]
        text = ", ".join(["all federated methods", *more])
    elif 2 * len(setting.methods) > len(federated) and not set(setting.methods) & set(centralised):
        text = f"all federated methods but {', '.join(name for name in federated if name not in setting.methods)}"
    else:
        text = ", ".join(setting.methods) or "methods of your own"
    if setting.encoders is not None:
        text += f"; encoders {', '.join(setting.encoders)}"
    return text


def preset_lines(setting: Setting) -> list[tuple[str, str]]:
    """Return the default of each preset, in words. Presets with the same defaults share a line."""
    lines: dict[str, list[str]] = {}
    for preset, defaults in setting.presets.items():
        lines.setdefault(_defaults(defaults), []).append(preset)
    return [(", ".join(presets), line) for line, presets in lines.items()]


def _defaults(defaults: Defaults) -> str:
    from fedalc.config.describe import written

    others = "; ".join(_by_value(defaults))
    parts = [written(defaults.value) + (f" ({others})" if others else "")]
    for text, encoders in _grouped((_defaults(one), name) for name, one in defaults.encoders.items()):
        parts.append(f"with encoder {', '.join(encoders)}: {text}")
    return "; ".join(parts)


def _by_value(defaults: Defaults) -> list[str]:
    from fedalc.config.describe import written

    return [
        f"{', '.join(methods)} {value}"
        for value, methods in _grouped((written(value), method) for method, value in defaults.methods.items())
    ]


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for value, name in pairs:
        groups.setdefault(value, []).append(name)
    return list(groups.items())


INTRODUCTION = """# Settings
Every setting of a run, section by section, as in `config.toml`. Set one with `--set server.ridge=0.5`, several in a
TOML file with `--config FILE`, or as keywords in Python: `fedalc.train(dataset="bibtex", server={"ridge": 0.5})`.
`none` stands for no value. `fedalc settings NAME` explains one on the command line, `fedalc settings --method NAME`
lists those that a method uses, and `fedalc settings --json` gives all of this to programs. fedalc refuses unknown names
and values, and warns about settings that your method or encoder ignores.

`make settings-page` makes this page from the code. Do not edit it.
"""


def markdown_page(sections: Sequence[Section]) -> str:
    """Return the page docs/settings.md. It has the settings of fedalc's own methods only."""
    lines = [INTRODUCTION]
    for section in sections:
        lines.append(f"## {f'[{section.name}]' if section.name else 'Outside of sections'}")
        if section.meaning:
            lines.append(f"{_escaped(section.meaning)}\n")
        lines += ["| setting | meaning | values | default | used by |", "|---|---|---|---|---|"]
        for one in section.settings:
            cells = [one.meaning, one.values, _default_cell(one), _use_cell(one)]
            lines.append(f"| `{one.name}` | {' | '.join(map(_escaped, cells))} |")
        lines.append("")
    return "\n".join(lines)


def _default_cell(setting: Setting) -> str:
    from fedalc.config.describe import written

    lines = preset_lines(setting)
    if len(lines) <= 1:
        return lines[0][1] if lines else written(setting.default)
    return "<br>".join(f"{preset}: {line}" for preset, line in lines)


def _use_cell(setting: Setting) -> str:
    only = "".join(f"<br>only with {condition}" for condition in setting.only_with)
    return users(setting) + only


def _escaped(text: str) -> str:
    """Escape a cell, and link the pages that it names."""
    text = text if "`" in text else re.sub(r"([*_|])", r"\\\1", text)
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)
