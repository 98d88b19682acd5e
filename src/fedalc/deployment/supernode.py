"""Flower's SuperNode, which runs installed code only: `python -m fedalc.deployment.supernode …` takes
flower-supernode's arguments.

A SuperNode runs whatever app the server's run brings along. Ours brings no code: it names modules of the fedalc that
the party has installed itself. So a party can refuse every app that is more than that.
"""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
from typing import Any

from fedalc.deployment.flower import APP

_FILES = {"pyproject.toml", "README.md", "LICENSE"}
_OF_FLOWER = ".info/"  # the list of files that Flower adds


def why_refused(app: bytes) -> str:
    """What an app has that it should not have, or nothing."""
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            foreign = [name for name in archive.namelist() if name not in _FILES and not name.startswith(_OF_FLOWER)]
            if foreign:
                return f"it brings a file of its own, {foreign[0]!r}"
            if any(name.endswith(".py") or ".." in name for name in archive.namelist()):
                return "it brings code of its own"
            components = _components(archive.read("pyproject.toml").decode())
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        return f"it cannot be read ({error})"
    own = _components((APP / "pyproject.toml").read_text("utf-8"))
    return "" if components == own else f"it runs {components} instead of {own}"


def _components(pyproject: str) -> dict[str, str]:
    return dict(tomllib.loads(pyproject)["tool"]["flwr"]["app"]["components"])


def main() -> None:
    import flwr.supernode.start_client_internal as internal
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode.cli import flower_supernode

    if not hasattr(internal, "get_fused_config_from_fab"):
        sys.exit("this version of Flower cannot be kept from running a server's code; install flwr 1.41")
    read_settings: Any = internal.get_fused_config_from_fab

    def read_own_settings(app: Any, *arguments: Any) -> Any:
        """Called once per run, before anything of the app is stored or run."""
        reason = why_refused(app)
        if reason:
            print(f"fedalc refused: the server sent an app this party does not run: {reason}", flush=True)
            raise RunNotRunningException  # the one that Flower takes as: leave this message alone
        return read_settings(app, *arguments)

    vars(internal)["get_fused_config_from_fab"] = read_own_settings
    flower_supernode()


if __name__ == "__main__":
    main()
