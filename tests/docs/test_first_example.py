"""README's first example runs as a new user runs it, and even without a home folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.support.plain import PlainEnvironment


def test_the_first_example_runs_without_a_home(plain: PlainEnvironment, tmp_path: Path) -> None:
    """In an empty folder. Ray asks for a token, which it cannot write to a file."""
    shown = blocks(ROOT / "README.md", "python")
    last = next(number for number, block in enumerate(shown) if ".loader(" in block.text)
    script = tmp_path / "example.py"
    script.write_text("\n".join(block.text for block in shown[: last + 1]))
    done = subprocess.run(
        [plain.python, str(script)],
        check=False,
        cwd=tmp_path,
        env={**plain.variables, "HOME": "/dev/null/home"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(raylet)" not in done.stdout + done.stderr
