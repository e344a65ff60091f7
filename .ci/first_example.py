"""Run README's first example on the installed package, in an empty folder, as a user's script.

The example is every Python block up to the first one that iterates over a loader.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import rayingest

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    """Write the example to a file and run it; SystemExit if it fails."""
    if not rayingest.__file__.startswith(sys.prefix):
        raise SystemExit(f"the package is not installed: it is imported from {rayingest.__file__}")
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", README.read_text())
    last = next(number for number, block in enumerate(blocks) if ".loader(" in block)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "example.py").write_text("\n".join(blocks[: last + 1]))
        done = subprocess.run([sys.executable, "example.py"], cwd=folder, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"README's first example failed with exit status {done.returncode}")
    print("README's first example runs on the installed wheel")


if __name__ == "__main__":
    main()
