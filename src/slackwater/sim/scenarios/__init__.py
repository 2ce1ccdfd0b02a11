"""The plays: each module here registers its scenarios and oracles when it is imported."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import all of them, in order of name."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        importlib.import_module(f"{__name__}.{module.name}")
