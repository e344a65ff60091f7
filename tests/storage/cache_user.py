"""Read ranges through a disk cache until killed; exit with status 3 at a wrong byte.

python tests/storage/cache_user.py FOLDER LIMIT SEED ROUNDS
"""

from __future__ import annotations

import random
import sys

from rayingest.storage.disk_cache import DiskCache

BLOCK, BLOCKS = 50_000, 100


def truth(span: tuple[int, int]) -> bytes:
    """The bytes of a range of the data: another in every block."""
    return random.Random(span[0]).randbytes(span[1] - span[0])


def main() -> None:
    """Reads until the rounds are over; the number of blocks that had to be fetched is printed."""
    folder, limit, seed, rounds = sys.argv[1], *map(int, sys.argv[2:])
    cache, rng, fetched = DiskCache(folder, limit), random.Random(seed), 0

    def fetch(spans: list[tuple[int, int]]) -> list[bytes]:
        nonlocal fetched
        fetched += len(spans)
        return [truth(span) for span in spans]

    print("begun", flush=True)
    for _ in range(rounds):
        spans = [(at * BLOCK, (at + 1) * BLOCK) for at in rng.choices(range(BLOCKS), k=4)]
        if cache.read_through("data", spans, fetch) != [truth(span) for span in spans]:
            sys.exit(3)
    print(fetched)


if __name__ == "__main__":
    main()
