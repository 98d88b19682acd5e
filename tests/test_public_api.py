"""The public names of `import fedalc`."""

from __future__ import annotations

from importlib.metadata import version

import fedalc


def test_everything_public_is_listed_and_there() -> None:
    assert set(fedalc.__all__) == {*fedalc._HOMES, "testing"} and set(fedalc.__all__) < set(dir(fedalc))
    for name in fedalc._HOMES:
        found = getattr(fedalc, name)
        assert (found if hasattr(found, "__qualname__") else type(found)).__module__.startswith("fedalc.")


def test_the_version() -> None:
    assert fedalc.__version__ == version("fedalc") and "__version__" in dir(fedalc)
