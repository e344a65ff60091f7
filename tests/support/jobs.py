"""Modules of `jobs/` for tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


def job(name: str) -> Any:
    """A module of `jobs/`, imported as its neighbours import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(JOBS))
        return importlib.import_module(name)
