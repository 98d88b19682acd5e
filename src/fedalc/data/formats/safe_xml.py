"""Parse small XML files; every failure is an error of one kind."""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from fedalc.errors import DataError


def parse(parser: expat.XMLParserType, content: bytes, error: Callable[[str, int], DataError]) -> None:
    """Run the parser over the content. `error` makes the exception from a message and a line."""
    try:
        parser.Parse(content, True)
    except expat.ExpatError as problem:
        raise error(f"is not well-formed XML: {expat.ErrorString(problem.code)}", problem.lineno) from None
    except (LookupError, ValueError) as problem:  # of codecs that Python does not have, or expat cannot use
        raise error(f"has an encoding that cannot be read ({problem}): save it as UTF-8", 1) from None
