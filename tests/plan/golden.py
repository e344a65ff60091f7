"""What the order is, as numbers: version 1, the groups of version 3, the mixtures of version 4, and the
weighted draws of version 5.

`python -m tests.plan.golden` writes the files that the tests compare with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rayingest.plan import keys
from rayingest.plan.budget import Budget
from rayingest.plan.grouped import GroupedPlanner
from rayingest.plan.grouped_order import GroupedOrder
from rayingest.plan.manifest import JoinedManifest, Manifest, ShardBlocks
from rayingest.plan.mixed import MixedOrder, MixedPlanner
from rayingest.plan.mixture import Mixture, ShuffledTurns
from rayingest.plan.order import Order
from rayingest.plan.packing import Packing
from rayingest.plan.planner import Picks, Planner
from rayingest.plan.succession import Succession, source_order
from rayingest.plan.turns import LevelTurns, counts_of
from rayingest.plan.view import View
from rayingest.plan.weighted import Resampling, WeightedPlanner, Weights
from tests.plan.cases import manifest, uniform

FILE = Path(__file__).with_name("golden_order_v1.json")
GROUPED_FILE = Path(__file__).with_name("golden_order_v3.json")
MIXED_FILE = Path(__file__).with_name("golden_order_v4.json")
WEIGHTED_FILE = Path(__file__).with_name("golden_order_v5.json")

_DOMAINS = ("blocks", "rotation", "window", "augment")
_COUNTS = [3, 7, 1, 5, 9, 2, 8, 4, 6, 2]  # 47 samples


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, "<i8").tobytes())
    return digest.hexdigest()


def _keys() -> dict[str, Any]:
    return {
        "mix64": [str(keys.mix64(word)) for word in (0, 1, 2**63)],
        "fold": [str(keys.fold(domain, 17, 0, -1, 2**64 + 3)) for domain in _DOMAINS],
        "hashes": [str(word) for word in keys.hashes(3, 2**64 - 5).tolist()],
        "permutations": [keys.permutation(n, 2**63 + n).tolist() for n in (1, 2, 3, 10, 17)],
        "largest sorted": _digest(keys.permutation(65_536, 5)),
        "smallest feistel": _digest(keys.permutation(65_537, 5)),
        "feistel": _digest(keys.permutation(200_000, 2**64 - 1)),
        "far in a feistel": keys.permute(np.array([0, 1, 10**12]), 10**12 + 1, np.array([3, 4, 5])).tolist(),
        "generator": [str(word) for word in keys.generator(17, 1, 0, 10**9, 2).bit_generator.random_raw(3).tolist()],
    }


def _epochs(data: Manifest, order: Order, epochs: int) -> list[list[list[int]]]:
    """Ordinals of every step of every epoch; a repeat is given as -1 - ordinal."""
    planner = Planner(data, order)
    return [[_signed(planner.picks(e, s)) for s in range(planner.steps_per_epoch)] for e in range(epochs)]


def _signed(picks: Picks) -> list[int]:
    return [int(ordinal) for ordinal in np.where(picks.valid, picks.ordinal, -1 - picks.ordinal)[: picks.rows]]


def _large(data: Manifest, order: Order, at: list[tuple[int, int]]) -> list[Any]:
    """The first ordinals, and a digest of all of them, of these (epoch, step)."""
    planner = Planner(data, order)
    picked = [planner.picks(epoch, step) for epoch, step in at]
    return [[p.epoch, p.step, p.ordinal[:4].tolist(), _digest(p.block, p.row, p.ordinal)] for p in picked]


def compute() -> dict[str, Any]:
    """Everything the golden file holds, made by the package as it stands."""
    small, large = manifest(_COUNTS), uniform(700, 1_000, 60_000)
    resolve = Order.resolve
    defaults = resolve(large, batch=256, seed=17)
    window = resolve(large, batch=256, seed=17, window=400_000, lanes=4)
    whole = resolve(large, batch=256, seed=17, window=10**6, lanes=1)
    shards = [ShardBlocks(*np.array([[0, 9], [9, 20], [1, 2], [9, 11]])), ShardBlocks(*np.array([[0], [5], [3], [5]]))]
    half_left = resolve(small, batch=6, partial="short", seed=0, window=12, lanes=2)
    return {
        "keys": _keys(),
        "fingerprint": Manifest.join("s3://x/", ["a", "b/c"], [20, 5], ["m", ""], shards).fingerprint,
        "one lane, one window, drop": _epochs(small, resolve(small, batch=12, seed=17), 3),
        "lanes, staggered windows, drop": _epochs(small, resolve(small, batch=4, seed=17, window=16, lanes=4), 2),
        "lanes, windows, pad": _epochs(small, resolve(small, batch=6, partial="pad", seed=17, window=12, lanes=3), 2),
        "lanes, windows, short": _epochs(small, half_left, 2),
        "less than a batch, pad": _epochs(small, resolve(small, batch=60, partial="pad", seed=-1), 2),
        "file order, pad": _epochs(small, resolve(small, batch=16, partial="pad"), 1),
        "defaults": [asdict(defaults), _large(large, defaults, [(0, 0), (0, 2_733), (1, 40), (10**6, 7)])],
        "windows by feistel": _large(large, window, [(0, 0), (0, 1), (0, 1_100), (0, 1_562), (3, 2_733), (0, 900)]),
        "whole epoch by feistel": _large(large, whole, [(0, 0), (0, 1), (2, 2_733)]),
    }


def compute_grouped() -> dict[str, Any]:
    """Everything the golden file of groups holds."""
    small, large = manifest(_COUNTS), uniform(40, 500, 1_000)
    of_small = (np.arange(47) * 7) % 11
    of_large = (np.arange(large.num_samples) * 7919) % 1500 % 1024
    found: dict[str, Any] = {}
    for name, packing in (("cut", Packing(10, cut=True)), ("best fit", Packing(10, cut=False))):
        order = GroupedOrder.over(View.whole(small), of_small, packing, batch=4, partial="pad", seed=17, window=16)
        planner = GroupedPlanner(small, order, of_small)
        found[f"{name}, pad"] = [
            str(order),
            [_packed(planner, e, s) for e in (0, 1) for s in range(planner.steps_in(e))],
        ]
        order = GroupedOrder.over(
            View.whole(large), of_large, Packing(1024, packing.cut), batch=16, partial="drop", seed=3
        )
        planner = GroupedPlanner(large, order, of_large)
        picks = planner.picks(1, 40)
        assert picks.layout is not None
        pieces = (picks.layout.row, picks.ordinal[picks.layout.sample], picks.layout.begin, picks.layout.end)
        found[f"{name}, defaults"] = [str(order), planner.steps_in(0), planner.steps_in(1), _digest(*pieces)]
    for ranks in (1, 3):
        order = GroupedOrder.over(
            View.whole(small), of_small, Budget(20, ranks, 2), batch=ranks, partial="drop", seed=17, window=16
        )
        ranked = [GroupedPlanner(small, order, of_small, rank, ranks) for rank in range(ranks)]
        steps = [(e, s) for e in (0, 1) for s in range(ranked[0].steps_in(e))]
        found[f"budget, {ranks}"] = [str(order), [[p.picks(e, s).ordinal.tolist() for p in ranked] for e, s in steps]]
    return found


def _packed(planner: GroupedPlanner, epoch: int, step: int) -> list[list[list[int]]]:
    """By row, the pieces: ordinal, begin and end; a repeat's ordinals are given as -1 - ordinal."""
    picks = planner.picks(epoch, step)
    layout = picks.layout
    assert layout is not None
    rows: list[list[list[int]]] = [[] for _ in range(layout.rows)]
    ordinal = picks.ordinal[layout.sample]
    ordinal = np.where(layout.valid[layout.row], ordinal, -1 - ordinal)
    for row, *piece in zip(
        layout.row.tolist(), ordinal.tolist(), layout.begin.tolist(), layout.end.tolist(), strict=True
    ):
        rows[row].append(piece)
    return rows


def compute_mixed() -> dict[str, Any]:
    """Everything the golden file of mixtures holds."""
    level = LevelTurns({0: counts_of([0.7, 0.2, 0.1]), 25: (1, 1, 0), 40: (3, 1, 5)})
    found: dict[str, Any] = {
        "turns": level.at(0, 60)[0].tolist(),
        "turns by chance": ShuffledTurns(level, 16, 2**63).at(0, 60)[0].tolist(),
        "many": _digest(*LevelTurns({0: counts_of([0.61803399, 0.1, 0.28196601])}).at(10**9, 10**9 + 70_000)),
    }
    small = [manifest(_COUNTS), manifest([6, 2, 5]), manifest([4] * 8)]
    for name, seed, partial in (
        ("shuffled, drop", 17, "drop"),
        ("shuffled, pad", 17, "pad"),
        ("file order", None, "short"),
    ):
        planner = _mixture(
            small, LevelTurns({0: (5, 2, 3)}), seed, batch=9, partial=partial, until=60, window=24, lanes=None
        )
        steps = [(epoch, step) for epoch in range(2) for step in range(planner.steps_in(epoch))]
        found[name] = [_of_sources(planner.picks(*at)) for at in steps]
    large = [uniform(300, 500, 60_000), uniform(40, 700, 20_000)]
    planner = _mixture(
        large, LevelTurns({0: (4, 1)}), 3, batch=512, partial="drop", until="all", window=None, lanes=None
    )
    picked = [planner.picks(epoch, step) for epoch, step in ((0, 0), (0, 100), (7, 13))]
    found["defaults"] = [str(planner.order.samples), *(_digest(p.source, p.passes, p.block, p.row) for p in picked)]
    return found


def _mixture(
    parts: list[Manifest],
    turns: LevelTurns,
    seed: int | None,
    *,
    batch: int,
    partial: str,
    until: str | int,
    window: int | None,
    lanes: int | None,
) -> MixedPlanner:
    """All sources with the same seed, window and lanes, of about a third of the rows each."""
    views, how = [View.whole(part) for part in parts], {"seed": seed, "window": window, "lanes": lanes}
    orders = [source_order(view, step_samples=batch / 3, share=1 / 3, **how) for view in views]
    mixture = Mixture(turns, [view.num_samples for view in views], until)
    order = MixedOrder.over(mixture, orders, [1 / 3] * len(parts), "", batch=batch, partial=partial, seed=seed)
    return MixedPlanner(JoinedManifest.of(parts), order, list(map(Succession, parts, orders)))


def _of_sources(picks: Picks) -> list[list[int]]:
    """[source, time through it, ordinal] of each row; a repeat's ordinal is given as -1 - ordinal."""
    ordinal = np.where(picks.valid, picks.ordinal, -1 - picks.ordinal)
    assert picks.source is not None
    assert picks.passes is not None
    return np.stack([picks.source, picks.passes, ordinal], axis=1)[: picks.rows].tolist()


def compute_weighted() -> dict[str, Any]:
    """Everything the golden file of weighted draws holds."""
    small, large = manifest(_COUNTS), uniform(40, 500, 1_000)
    of_small, of_large = np.arange(47.0) ** 2, 1 + np.arange(large.num_samples) % 7 / 3
    found: dict[str, Any] = {}
    for name, data, weights, draws in (("small", small, of_small, 60), ("defaults", large, of_large, None)):
        stratum = np.arange(len(weights)) % 4 if draws else None
        by = Resampling.of(View.whole(data), Weights(weights, stratum), draws)
        window = 30 if draws else None
        planner = WeightedPlanner(by, Order.resolve(by, batch=12, partial="pad", seed=17, window=window))
        picked = [planner.picks(epoch, step) for epoch in (0, 5) for step in range(5)]
        found[name] = [[_signed(picks), _digest(picks.passes)] for picks in picked]
    return found


if __name__ == "__main__":
    for file, computed in (
        (FILE, compute()),
        (GROUPED_FILE, compute_grouped()),
        (MIXED_FILE, compute_mixed()),
        (WEIGHTED_FILE, compute_weighted()),
    ):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in computed.items()]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
