"""The limits within which dispatch works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How far dispatch may go.

    `max_bytes`: blocks and outputs together. `ahead`: steps from the one due on whose blocks may be fetched. `ready`:
    steps from the one due on that may be decoded (more where that is too few to keep the decoders busy). `room`:
    batches that lie ready for the consumer, up to `most_room` of them where they take no more than `room_bytes`
    together: small ones are handed over many at a time. A decode should take `task_seconds`; `whole_steps` keeps steps
    in one piece as far as `max_bytes` allows. A read takes up to `read_blocks` blocks or `read_bytes`. A reader has
    `few_reads` at a time, and more only while they are of less than `reading_bytes`, since it holds them beside the
    store. Nothing is tried more than `max_tries` times. Objects under `inline_bytes` do not lie in the store, and are
    gone as soon as given up. `in_order`: where a block begins is known when the one before it was read, so they are
    read one after the other, by one reader as long as it is there; what is behind one that cannot be had cannot either.
    """

    max_bytes: int = 1 << 62
    ahead: int = 16
    ready: int = 4
    room: int = 2
    most_room: int = 32
    room_bytes: int = 4 << 20
    task_seconds: float = 0.4
    first_task_rows: int = 16
    whole_steps: bool = False
    read_blocks: int = 16
    read_bytes: int = 4 << 20
    few_reads: int = 8
    reading_bytes: int = 64 << 20
    max_tries: int = 4
    inline_bytes: int = 100 << 10
    in_order: bool = False
