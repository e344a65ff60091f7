"""Golden values that planners give: keys, and orders of data too large for a test to write."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tests.golden import adapter

_COUNTS = [3, 7, 1, 5, 9, 2, 8, 4, 6, 2]  # 47 samples


def digest(*arrays: np.ndarray) -> str:
    """Return 32 hex digits of integers."""
    hashed = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hashed.update(np.ascontiguousarray(array, "<i8").tobytes())
    return hashed.hexdigest()


def keys() -> dict[str, Any]:
    """Return hashes, permutations and random words."""
    far = np.array([0, 1, 10**12])
    generator = adapter.generator(17, 1, 0, 10**9, 2)
    domains = ("blocks", "rotation", "window", "augment")
    return {
        "mix64": [str(adapter.mix64(word)) for word in (0, 1, 2**63)],
        "fold": [str(adapter.fold(domain, 17, 0, -1, 2**64 + 3)) for domain in domains],
        "hashes": [str(word) for word in adapter.hashes(3, 2**64 - 5).tolist()],
        "permutations": [adapter.permutation(n, 2**63 + n).tolist() for n in (1, 2, 3, 10, 17)],
        "largest sorted": digest(adapter.permutation(65_536, 5)),
        "smallest feistel": digest(adapter.permutation(65_537, 5)),
        "feistel": digest(adapter.permutation(200_000, 2**64 - 1)),
        "far in a feistel": adapter.permute(far, 10**12 + 1, np.array([3, 4, 5])).tolist(),
        "generator": [str(word) for word in generator.bit_generator.random_raw(3).tolist()],
        "every domain": {
            tag: str(adapter.fold(tag, 17, 0, -1)) for tag in sorted(adapter.domain_tags())
        },
    }


def fingerprint() -> dict[str, Any]:
    """Return the fingerprints of indexes."""
    shards = [[[0, 9], [9, 20], [1, 2], [9, 11]], [[0], [5], [3], [5]]]
    parts = [adapter.blocks_of(_COUNTS), adapter.equal_blocks(40, 500, 1_000)]
    return {
        "fingerprint": adapter.fingerprint("s3://x/", ["a", "b/c"], [20, 5], ["m", ""], shards),
        "several sources": adapter.joint_fingerprint(parts),
    }


def crops() -> dict[str, Any]:
    """Return the [left, top, right, bottom] that random crops take of 60 x 80 pixels."""

    def boxes(
        count: int, scale: tuple[float, float], ratio: tuple[float, float]
    ) -> list[tuple[int, ...]]:
        rngs = [adapter.generator(5, 0, 0, sample, 0) for sample in range(count)]
        return [adapter.crop_box(scale, ratio, 60, 80, rng) for rng in rngs]

    tried = boxes(200, (0.9, 1.0), (0.5, 2.0))
    return {
        "crops": boxes(8, (0.08, 1.0), (3 / 4, 4 / 3)),
        "crops of many tries": [*tried[:5], digest(np.array(tried))],
        "crops of a ratio that never fits": boxes(1, (0.9, 1.0), (3.0, 4.0)),
    }


def window() -> dict[str, Any]:
    """Return orders that give each sample once an epoch."""
    small, large = adapter.blocks_of(_COUNTS), adapter.equal_blocks(700, 1_000, 60_000)

    def epochs(count: int, **how: Any) -> list[list[list[int]]]:
        order = adapter.WindowOrder(small, **how)
        return [
            [order.ordinals(epoch, step) for step in range(order.steps)] for epoch in range(count)
        ]

    def some(order: adapter.WindowOrder, at: list[tuple[int, int]]) -> list[Any]:
        """The first ordinals and a digest of all, of these epochs and steps."""
        found = []
        for epoch, step in at:
            block, row, ordinal = order.where(epoch, step)
            found.append([epoch, step, ordinal[:4].tolist(), digest(block, row, ordinal)])
        return found

    defaults = adapter.WindowOrder(large, batch=256, seed=17)
    heavy = adapter.WindowOrder(adapter.equal_blocks(100, 50, 10_000_000), batch=16, seed=17)
    windows = adapter.WindowOrder(large, batch=256, seed=17, window=400_000, lanes=4)
    whole = adapter.WindowOrder(large, batch=256, seed=17, window=10**6, lanes=1)
    return {
        "one lane, one window, drop": epochs(3, batch=12, seed=17),
        "lanes, staggered windows, drop": epochs(2, batch=4, seed=17, window=16, lanes=4),
        "lanes, windows, pad": epochs(2, batch=6, partial="pad", seed=17, window=12, lanes=3),
        "lanes, windows, short": epochs(2, batch=6, partial="short", seed=0, window=12, lanes=2),
        "less than a batch, pad": epochs(2, batch=60, partial="pad", seed=-1),
        "defaults": [
            defaults.parameters,
            some(defaults, [(0, 0), (0, 2_733), (1, 40), (10**6, 7)]),
        ],
        "defaults, samples of 10 MB": [heavy.parameters, some(heavy, [(0, 0), (1, 100)])],
        "windows by feistel": some(
            windows, [(0, 0), (0, 1), (0, 1_100), (0, 1_562), (3, 2_733), (0, 900)]
        ),
        "whole epoch by feistel": some(whole, [(0, 0), (0, 1), (2, 2_733)]),
    }


def file_order() -> dict[str, Any]:
    """Return an order without a shuffle."""
    order = adapter.WindowOrder(adapter.blocks_of(_COUNTS), batch=16, partial="pad")
    return {"file order, pad": [[order.ordinals(0, step) for step in range(order.steps)]]}


def packed(cut: bool) -> dict[str, Any]:
    """Return packed rows."""
    small, large = adapter.blocks_of(_COUNTS), adapter.equal_blocks(40, 500, 1_000)
    of_small = (np.arange(47) * 7) % 11
    of_large = (np.arange(large.num_samples) * 7919) % 1500 % 1024
    order = adapter.PackedOrder(
        small, of_small, 10, cut=cut, batch=4, partial="pad", seed=17, window=16
    )
    steps = [(epoch, step) for epoch in (0, 1) for step in range(order.steps(epoch))]
    more = adapter.PackedOrder(large, of_large, 1024, cut=cut, batch=16, partial="drop", seed=3)
    lengths = [more.steps(0), more.steps(1)]
    return {
        "pad": {"window": order.window, "rows": [_by_row(*order.pieces(*at)) for at in steps]},
        "defaults": {
            "window": more.window,
            "steps": lengths,
            "digest": digest(*more.pieces(1, 40)),
        },
    }


def _by_row(row: np.ndarray, *piece: np.ndarray) -> list[list[list[int]]]:
    """Pieces [ordinal, begin, end] by row."""
    rows: list[list[list[int]]] = [[] for _ in range(1 + int(row.max(initial=-1)))]
    for number, of in zip(row.tolist(), np.stack(piece, axis=1).tolist(), strict=True):
        rows[number].append(of)
    return rows


def budgeted() -> dict[str, Any]:
    """Return batches of a limited size."""
    of_small = (np.arange(47) * 7) % 11
    found = {}
    for ranks in (1, 3):
        how = {"partial": "drop", "seed": 17, "window": 16}
        order = adapter.BudgetedOrder(adapter.blocks_of(_COUNTS), of_small, 20, ranks, 2, **how)
        steps = [
            order.ordinals(epoch, step) for epoch in (0, 1) for step in range(order.steps(epoch))
        ]
        found[f"ranks {ranks}"] = {"window": order.window, "steps": steps}
    return found


def mixed() -> dict[str, Any]:
    """Return mixtures."""
    counts = {0: adapter.counts_of_weights([0.7, 0.2, 0.1]), 25: (1, 1, 0), 40: (3, 1, 5)}
    golden = {0: adapter.counts_of_weights([0.61803399, 0.1, 0.28196601])}
    found: dict[str, Any] = {
        "turns": adapter.level_turns(counts, 0, 60)[0].tolist(),
        "turns by chance": adapter.shuffled_turns(counts, 16, 2**63, 0, 60).tolist(),
        "many": digest(*adapter.level_turns(golden, 10**9, 10**9 + 70_000)),
    }
    small = [adapter.blocks_of(counts) for counts in (_COUNTS, [6, 2, 5], [4] * 8)]
    for name, seed, partial in (
        ("shuffled, drop", 17, "drop"),
        ("shuffled, pad", 17, "pad"),
        ("file order", None, "short"),
    ):
        order = adapter.MixedOrderOf(
            small, (5, 2, 3), seed, batch=9, partial=partial, until=60, window=24
        )
        found[name] = [
            order.rows(epoch, step) for epoch in range(2) for step in range(order.steps(epoch))
        ]
    large = [adapter.equal_blocks(300, 500, 60_000), adapter.equal_blocks(40, 700, 20_000)]
    order = adapter.MixedOrderOf(large, (4, 1), 3, batch=512, partial="drop", until="all")
    found["defaults"] = [
        str(order.samples),
        *(digest(*order.where(*at)) for at in ((0, 0), (0, 100), (7, 13))),
    ]
    return found


def weighted() -> dict[str, Any]:
    """Return draws by weight."""
    small, large = adapter.blocks_of(_COUNTS), adapter.equal_blocks(40, 500, 1_000)
    of_small, of_large = np.arange(47.0) ** 2, 1 + np.arange(large.num_samples) % 7 / 3
    how = {"batch": 12, "partial": "pad", "seed": 17}
    orders = {
        "small": adapter.WeightedOrder(small, of_small, np.arange(47) % 4, 60, window=30, **how),
        "defaults": adapter.WeightedOrder(large, of_large, None, None, **how),
    }
    steps = [(epoch, step) for epoch in (0, 5) for step in range(5)]
    return {
        name: [[order.ordinals(*at), digest(order.passes(*at))] for at in steps]
        for name, order in orders.items()
    }
