"""State the limits within which dispatch works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bound how much memory, how far ahead and how often dispatch works."""

    # Memory, in bytes. The ledger charges blocks and decoded outputs against `max_bytes` together;
    # `eviction.py` decides what waits and what is evicted at this bound.
    max_bytes: int = 1 << 62
    # A smaller object does not lie in the store: its bytes are free as soon as it is released.
    inline_bytes: int = 100 << 10

    # Steps, counted from the step due: so far ahead blocks may be read, and chunks decoded.
    # Dispatch decodes further ahead where `decode_ahead` is too short to keep all decoders busy.
    read_ahead: int = 16
    decode_ahead: int = 4

    # Batches that lie ready for the consumer: `ready_batches`, and up to `max_ready_batches`
    # while all of them take at most `ready_bytes`: small batches are delivered many at a time.
    ready_batches: int = 2
    max_ready_batches: int = 32
    ready_bytes: int = 4 << 20
    # Batches that the consumer takes before the loop asks for them, to copy them to a device.
    copied_ahead: int = 0

    # A decode task should take `task_seconds`; the first ones have `first_task_rows` rows.
    # `whole_steps`: a step is one chunk, as far as `max_bytes` allows.
    task_seconds: float = 0.4
    first_task_rows: int = 16
    whole_steps: bool = False

    # A read task has up to `read_blocks` blocks of up to `read_bytes` together. A reader runs
    # `min_reads` tasks at a time, and more while their blocks take less than `reader_bytes`:
    # a reader holds them in its own memory beside the store.
    read_blocks: int = 16
    read_bytes: int = 4 << 20
    min_reads: int = 8
    reader_bytes: int = 64 << 20

    # A read or decode that fails `max_tries` times through no fault of its data ends the stream.
    max_tries: int = 4

    # The end of a block is known only when it was read. So blocks are read one after the other,
    # by the same reader while it lives, and a broken block breaks all blocks behind it.
    in_order: bool = False
