"""Launched by others: torchrun's ranks share one cluster, and a new process goes on from a saved state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.streams import images, run

ROOT = Path(__file__).parents[2]

RANK = """
import json, sys
from pathlib import Path
import ray
import rayingest as ri
from tests.streams import images, rows

pattern, folder = sys.argv[1:]
with images(pattern, 24).loader(workers=1) as loader:
    ids = [rows(batch) for batch in loader]
    seen = {"address": ray.get_runtime_context().gcs_address, "world_size": loader.world_size, "rows": ids}
    Path(folder, f"rank{loader.rank}.json").write_text(json.dumps(seen))
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
"""

RESUME = """
import json, sys
from tests.streams import images, run

pattern, state = sys.argv[1:]
print(json.dumps(run(images(pattern, 24), 2, state=json.loads(state), epochs=2)[0]))
"""


def python(*args: str, **environment: str) -> str:
    """The output of a new interpreter."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, *args]
    done = subprocess.run(command, check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ranks_of_torchrun_share_one_cluster(shards: str, tmp_path: Path) -> None:
    """One of them starts it, the other attaches; each finds its rank, and together they give the global batches."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    python(*launch, shards, str(tmp_path))
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["address"] == second["address"]
    assert first["world_size"] == second["world_size"] == 2
    both = [[tuple(row) for row in a + b] for a, b in zip(first["rows"], second["rows"], strict=True)]
    assert both == run(images(shards, 24))[0]


def test_a_new_process_goes_on_where_another_stopped(shards: str) -> None:
    """Nothing but the state is carried over."""
    data = images(shards, 24)
    _, state = run(data, steps=6)
    printed = python("-c", RESUME, shards, json.dumps(state)).splitlines()[-1]
    assert [[tuple(row) for row in step] for step in json.loads(printed)] == run(data, epochs=2)[0][6:]
