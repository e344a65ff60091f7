"""Workers read every format, and load no library that they do not need."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray

import rayingest as ri
from rayingest.execute.cluster.decoder import DecodeResult
from rayingest.execute.cluster.object_refs import BlockMessage
from rayingest.execute.work import Span
from tests.support.streams import images, run

SLOW = {"pandas", "scipy", "sklearn", "torch"}
"""Each of them takes a worker longer to import than all that it needs."""


def slow_imports(worker: Any) -> set[str]:
    """Return the slow libraries that an actor has loaded."""
    return SLOW & sys.modules.keys()


def test_common_formats_come_over_ray_without_slow_imports(
    shards: str, tmp_path: Path, cluster: Any
) -> None:
    """Tar, Parquet and JSON Lines, in workers of their own: the first batch does not wait for
    pandas.
    """
    table = {
        "i": list(range(90)),
        "name": [f"n{i}" for i in range(90)],
        "pair": [[i, -i] for i in range(90)],
        "flag": [i % 3 == 0 for i in range(90)],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=25)
    lines = [json.dumps({"i": i, "pair": [i, i]}) for i in range(70)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    parquet, lines_of = (
        ri.read_parquet(str(tmp_path / "*.parquet")),
        ri.read_json(str(tmp_path / "*.jsonl")),
    )
    with ri.Pool(workers=1) as pool:
        for data in (
            images(shards, 50),
            parquet.shuffle(seed=1, window=40).batch(20),
            lines_of.shuffle(seed=1, window=40).batch(20),
        ):
            expected = run(data)
            assert run(data, pool=pool) == expected
        assert [
            ray.get(handle.actor.__ray_call__.remote(slow_imports)) for handle in pool.actors
        ] == [set()] * 2


def test_tasks_of_a_stream_that_has_ended_are_no_errors(pool_of_1: ri.Pool) -> None:
    """They may arrive after `forget`, and Ray would log an error for each."""
    (reader,) = [handle.actor for handle in pool_of_1.actors if handle.role == "reader"]
    (decoder,) = [handle.actor for handle in pool_of_1.actors if handle.role == "decoder"]
    reading = reader.read.options(num_returns=3).remote(
        "gone", [Span("a.tar", 9, "", [(0, 5, 1), (5, 9, 1)])], 99
    )
    decoding = decoder.decode.options(num_returns=2).remote("gone", None, (), 0, BlockMessage())
    assert ray.get(reading) == [None] * 3
    assert ray.get(decoding) == [DecodeResult((), 0.0), []]
