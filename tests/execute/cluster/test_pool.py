"""A pool: nodes that cool down, and decoders that come and go."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import rayingest as ri
from rayingest.execute.cluster import pool
from rayingest.execute.cluster.pool import CoolDown, exclude_nodes
from tests.support.streams import images, joined


def node(name: str, cpus: int = 4, alive: bool = True) -> dict[str, Any]:
    """Return a node as `ray.nodes` does."""
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {}}


def test_a_node_is_excluded_while_another_has_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head without CPUs and a dead node do not count."""
    there: list[dict[str, Any]] = []
    monkeypatch.setattr(pool.ray, "nodes", lambda: there)
    nodes = CoolDown(lambda name: None)
    there[:] = [node("head", 0), node("a"), node("b"), node("dead", alive=False)]
    assert nodes.nodes() == ()
    nodes.start("b")
    assert nodes.nodes() == ("b",)
    nodes.start("a")
    assert nodes.nodes() == ()
    nodes.end("b")
    assert nodes.nodes() == ("a",)
    nodes.clear()
    assert nodes.nodes() == ()
    assert (exclude_nodes(()), exclude_nodes(("a", "b"))) == (
        {},
        {"label_selector": {"ray.io/node-id": "!in(a,b)"}},
    )


def test_the_end_of_a_cool_down_is_reported_once(wait_until: Any) -> None:
    """And never after `clear`."""
    told, heard = [], threading.Event()

    def over(name: str) -> None:
        told.append(name)
        heard.set()

    nodes = CoolDown(over, seconds=0.01)
    nodes.start("a")
    nodes.start("a")
    assert heard.wait(10)
    assert told == ["a"]
    late = CoolDown(over, seconds=60)
    late.start("b")
    late.clear()
    assert told == ["a"]
    wait_until(
        lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()), 10
    )


def test_decoders_come_and_go_and_the_stream_is_the_same(
    cluster: Any, shards: str, wait_until: Any
) -> None:
    """Two more decoders after a few steps; one is left in the second epoch."""
    data = images(shards, 10)
    with data.loader(workers=0) as loader:
        reference = [joined([batch]) for _ in range(2) for batch in loader]

    def decoders(pool: ri.Pool) -> int:
        return pool.count("decoder")

    seen = []
    with ri.Pool(workers=1) as pool, data.loader(pool=pool) as loader:
        for _ in range(2):
            for batch in loader:
                seen.append(joined([batch]))
                if len(seen) == 5:
                    pool.resize(3)
                    wait_until(lambda: decoders(pool) == 3, 60)
                if len(seen) == len(reference) // 2 + 5:
                    pool.resize(1)
                    wait_until(lambda: decoders(pool) == 1, 60)
    assert seen == reference
