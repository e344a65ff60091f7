"""The figures of the code base, on a small package whose layout is known and on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import house
from tests.support.files import write_files

pytestmark = pytest.mark.source

FILES = {
    "rayingest/__init__.py": "from rayingest.api.dataset import Dataset",
    "rayingest/errors.py": "class ConfigError(Exception): ...",
    "rayingest/api/__init__.py": "",
    "rayingest/api/dataset.py": "from rayingest.plan import Order\nfrom rayingest import errors",
    "rayingest/plan/__init__.py": "from rayingest.plan.order.weighted import Order",
    "rayingest/plan/order/__init__.py": "",
    "rayingest/plan/order/weighted.py": "from ...errors import ConfigError\nclass Order: ...",
    "rayingest/plan/figures.py": "def name(kind):\n    return 1 if kind == 'weighted' else 2",
    "tests/test_x.py": f"a = 1\n\n{'b' * 101} = 2\n",
}


def test_imports_lead_to_the_module_that_defines_the_name(tmp_path: Path) -> None:
    """A name that an `__init__` passes on is an import of its origin."""
    checkout = house.Checkout(write_files(tmp_path, FILES))
    assert checkout.imports["rayingest.api.dataset"] == {
        "rayingest.plan.order.weighted",
        "rayingest.errors",
    }


def test_an_init_that_passes_names_on_closes_no_ring(tmp_path: Path) -> None:
    """A package that imports the users of one of its modules does."""
    assert house.Checkout(write_files(tmp_path, FILES)).rings() == []
    lazy = "def plan():\n    from rayingest.api import dataset"
    write_files(tmp_path, {"rayingest/plan/order/state.py": lazy})
    assert house.Checkout(tmp_path).rings() == [["rayingest.api", "rayingest.plan.order"]]


def test_the_files_that_know_an_order_are_outside_its_own(tmp_path: Path) -> None:
    """They import one of its modules or compare its name; a kind without a module has none."""
    checkout = house.Checkout(write_files(tmp_path, FILES))
    known = checkout.files_that_know("weighted")
    assert known == ["rayingest.api.dataset", "rayingest.plan", "rayingest.plan.figures"]
    assert checkout.files_that_know("mixed") is None


def test_long_lines_are_counted_of_those_that_are_not_blank(tmp_path: Path) -> None:
    """Two lines of code, one of them too long."""
    assert house.long_lines(write_files(tmp_path, FILES) / "tests") == (1, 2)


def test_the_table_shows_this_package(tmp_path: Path) -> None:
    """A figure a row, and the same as JSON."""
    command = [sys.executable, str(Path(house.__file__)), "--json", str(tmp_path / "f.json")]
    table = subprocess.check_output(command, text=True)
    (figures,) = json.loads((tmp_path / "f.json").read_text()).values()
    assert [line[:44].strip() for line in table.splitlines()] == list(figures)
    assert 0 < figures["modules loaded"] <= figures["modules"]
    loader, batch = (figures[f"files entered for the {name}"] for name in ("loader", "first batch"))
    assert 0 < loader < batch <= figures["modules loaded"]
