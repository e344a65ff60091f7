"""The registry of order kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rayingest.plan.order.kinds import KINDS

CODE = """
import sys
import rayingest as ri
with ri.read_json("a.jsonl").shuffle().batch(4).loader(workers=0) as loader:
    next(iter(loader))
import json
print(json.dumps(sorted(name for name in sys.modules if name in set(json.loads(sys.argv[1])))))
"""


def test_a_loader_imports_its_own_kind_alone(tmp_path: Path) -> None:
    """Of all modules in the registry, a plain loader loads that of windows."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 8)
    modules = sorted({module for module in KINDS.values() if isinstance(module, str)})
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(modules)],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["rayingest.plan.order.window"]
