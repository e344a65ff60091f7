"""Hashes of a whole shard that a data set's index tells."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from rayingest.errors import ConfigError
from rayingest.formats.optional import needed
from rayingest.formats.protocol import Shard


def check_hashes(shard: Shard, expected: Mapping[str, str], chunks: Iterable[bytes]) -> None:
    """DataError unless the shard's contents, given in chunks, have these hashes: hexadecimal, by algorithm."""
    states = {algorithm: _new(algorithm, shard) for algorithm in expected}
    for chunk in chunks:
        for state in states.values():
            state.update(chunk)
    for algorithm, state in states.items():
        if state.hexdigest() != expected[algorithm]:
            raise shard.error(f"damaged: its {algorithm} is not the one in its index.json", 0)


def _new(algorithm: str, shard: Shard) -> Any:
    if algorithm in hashlib.algorithms_available:
        return hashlib.new(algorithm, usedforsecurity=False)
    made = getattr(
        needed("xxhash", "mds", f"the hash {algorithm} of {shard.shown}"), algorithm, None
    )
    if made is None:
        raise ConfigError(
            f"{shard.shown}: its index.json has a hash {algorithm!r}, which is not known"
        )
    return made()
