"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    """As pyproject.toml says, or "source" where the tree runs without having been installed."""
    try:
        return version("firsttoken")
    except PackageNotFoundError:
        return "source"
