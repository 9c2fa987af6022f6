"""The version of the package."""

from __future__ import annotations

__version__ = "0.1.0"


def installed(package: str) -> str:
    """The version of an installed package; ``""`` if it is not installed."""
    import importlib.metadata  # here, as it takes long to import and a plan needs it for rows alone

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
