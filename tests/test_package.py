"""The package as it is installed: it is whole, and its types are marked as checked."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import rayingest

ROOT = Path(__file__).parents[1]
FOLDER = Path(rayingest.__file__).parent


def test_the_package_is_the_one_to_be_tested() -> None:
    """The source tree if it lies beside the tests, else the installed wheel."""
    source = ROOT / "rayingest"
    if source.exists():
        assert source == FOLDER
    else:
        assert FOLDER.is_relative_to(sys.prefix)


def test_every_module_is_there() -> None:
    """Each folder is a package, and each module can be imported."""
    names = [found.name for found in pkgutil.walk_packages([str(FOLDER)], "rayingest.")]
    paths = set(FOLDER.rglob("*.py"))
    files = {path for path in paths if path.name != "__init__.py"}
    packages = {path.parent for path in paths} - {FOLDER}
    assert len(names) == len(files) + len(packages)
    for name in names:
        importlib.import_module(name)


def test_the_installed_distribution_is_complete() -> None:
    """Types are marked as checked, the command exists, and the version is the distribution's."""
    assert (FOLDER / "py.typed").exists()
    (command,) = entry_points(group="console_scripts", name="rayingest")
    assert callable(command.load())
    assert version("rayingest") == rayingest.__version__
