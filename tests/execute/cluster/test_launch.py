"""Ranks of torchrun share one cluster, and resume from a state that another process saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.streams import images, run

ROOT = Path(__file__).parents[3]

RANK = """
import functools, json, sys
from pathlib import Path
import ray
from tests.support.streams import images, rows

# The dashboard's processes take longest to start.
ray.init = functools.partial(ray.init, include_dashboard=False)
pattern, state, folder = sys.argv[1:]
with images(pattern, 24).loader(workers=1, epochs=2) as loader:
    loader.load_state_dict(json.loads(state))
    seen = [rows(batch) for _ in range(2) for batch in loader]
    address = ray.get_runtime_context().gcs_address
    result = {"address": address, "world_size": loader.world_size, "rows": seen}
    Path(folder, f"rank{loader.rank}.json").write_text(json.dumps(result))
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
"""


def test_ranks_of_torchrun_share_one_cluster_and_resume(shards: str, tmp_path: Path) -> None:
    """One rank starts the cluster, the other joins it.

    Each finds its rank, and only the state is carried over.
    """
    data = images(shards, 24)
    _, state = run(data, steps=6)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    command = [*launch, shards, json.dumps(state), str(tmp_path)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["address"] == second["address"]
    assert first["world_size"] == second["world_size"] == 2
    both = [
        [tuple(row) for row in a + b] for a, b in zip(first["rows"], second["rows"], strict=True)
    ]
    assert both == run(data, epochs=2)[0][6:]
