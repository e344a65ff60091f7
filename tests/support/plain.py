"""The environment of a user: an empty home, no variable that changes Ray or Python, no checkout.

The tests' own process sets `RAY_AUTH_MODE`, `PYTHONPATH` and more, which hides faults that users
meet. Processes that run in a `PlainEnvironment` have none of it, and import the installed package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import rayingest

SCRIPT = """#!{python}
import sys
from importlib.metadata import entry_points

(point,) = entry_points(group="console_scripts", name="{name}")
sys.exit(point.load()())
"""


@dataclass(frozen=True)
class PlainEnvironment:
    """A virtual environment with the installed packages, and variables of a new user.

    Attributes:
        bin: the folder of `python`, `ray`, `rayingest` and `torchrun`.
        variables: for `subprocess`, as `env`.
    """

    bin: Path
    variables: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.bin / "python")


def make_plain_environment(folder: Path) -> PlainEnvironment:
    """Make an environment in an empty folder. The package is imported from a folder of its own."""
    home, packages, environment = folder / "home", folder / "packages", folder / "venv"
    home.mkdir()
    packages.mkdir()
    (packages / "rayingest").symlink_to(Path(rayingest.__file__).parent)
    command = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(command, check=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    here = Path(sysconfig.get_path("purelib", "venv", paths))
    (here / "plain.pth").write_text(f"{packages}\n{sysconfig.get_path('purelib')}\n")
    for name in ("ray", "rayingest", "torchrun"):
        script = environment / "bin" / name
        script.write_text(SCRIPT.format(python=environment / "bin" / "python", name=name))
        script.chmod(0o755)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return PlainEnvironment(environment / "bin", {**kept, "HOME": str(home), "PATH": path})
