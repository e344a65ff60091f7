"""Decide what fits `max_bytes` now, and what is evicted to make room.

Of the blocks that may go, the one needed latest goes first (`BlockCache.evictable`).
Owns the arithmetic of rules 1, 2 and 4 (README.md of this folder): why the step due can always go
on, whatever runs, and so dispatch never waits for itself. Refuses to begin anything.
"""

from __future__ import annotations

import math

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import Block
from rayingest.plan.dispatch.chunks import FIRST, Chunk, Key
from rayingest.plan.dispatch.state import State

_HEADROOM = 1.125
"""An error about too small a `max_bytes` advises this many times what the largest block and batch
seen or expected so far take: later ones may be larger.
"""


class Eviction:
    """Make room in one stream's state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def expected_bytes(self, chunk: Chunk) -> int:
        """Return how many bytes the chunk's output is expected to take."""
        return chunk.measured_bytes or self._state.pace.expected_bytes(chunk.cost)

    def fits_output(self, chunk: Chunk) -> bool:
        """Return whether the chunk may be decoded now; makes room for the step due.

        May evict, and fails the stream where even an otherwise empty store is too small.
        """
        if chunk.step == self._state.queue.due:
            return self._fits_due_output(chunk)
        # Rule 1: outputs of later steps leave room for all blocks, or one where there is none, and
        # for the output of one whole step.
        ledger = self._state.ledger
        later, reserved = self._outputs()
        later += self.expected_bytes(chunk) + ledger.released
        blocks = max(ledger.blocks, self._state.cache.largest)
        return later + reserved + blocks <= ledger.max_bytes

    def _fits_due_output(self, chunk: Chunk) -> bool:
        ledger = self._state.ledger
        nbytes = self.expected_bytes(chunk)
        # Rule 2: the output of the step due may displace any block needed later.
        if self._free(ledger.exceeds_by(nbytes), chunk.key):
            return True
        if not self.is_stuck(chunk):
            return False
        if ledger.exceeds_by(nbytes) <= 0:
            return True
        # Rule 3 splits a chunk of several blocks. Rule 4 tries one of a single block in the room
        # there is, as its rows may be smaller than the largest; it fails if they are known to be
        # too large.
        if len(chunk.blocks) > 1:
            return False
        if chunk.measured_bytes:
            self.fail_for_room(chunk.blocks[0], ledger.outputs + chunk.measured_bytes)
        return not chunk.measured_bytes

    def is_stuck(self, chunk: Chunk) -> bool:
        """Return whether a chunk of the step due will never have more room than now (rule 4)."""
        return self.gives_up_rest(FIRST, besides=chunk.blocks)

    def gives_up_rest(self, key: Key, besides: tuple[int, ...] = ()) -> bool:
        """Evict all that is not needed before `key`; returns whether that is done (rule 4).

        That are blocks other than `besides`, outputs of later steps, and outputs that share an
        object with a part that nothing needs. Returns False without evicting while a task runs or
        bytes are released: these may make the room.
        """
        state = self._state
        if state.workers.tasks or state.ledger.decoding or state.ledger.released:
            return False
        blocks = state.cache.evictable(key)
        state.evict({b.number: b.nbytes for b in blocks if b.number not in besides})
        for chunk in state.queue.with_output():
            if chunk.step != state.queue.due or not state.ledger.is_whole(chunk.task):
                state.redo(chunk)
        return not state.ledger.released

    def fail_for_room(self, number: int, output_bytes: int) -> None:
        """Fail the stream: `max_bytes` cannot hold this block beside outputs of this size."""
        state = self._state
        block_bytes = state.cache.expected_bytes(number)
        batch_bytes = max(output_bytes, state.pace.expected_bytes(state.queue.max_step_cost))
        enough = math.ceil(_HEADROOM * (state.cache.largest_expected_bytes() + batch_bytes))
        reason = (
            f"max_bytes={state.ledger.max_bytes} is too small for one block of {block_bytes} bytes "
            f"and one batch of {batch_bytes} bytes; set max_bytes to {enough} or more"
        )
        state.fail(ev.Fail(reason, (number,)))

    def over_budget(self, block: Block) -> int:
        """Return by how many bytes a read of the block would exceed `max_bytes`; <= 0: it fits.

        The room for the output of one whole step, the one due, stays reserved (rule 1).
        """
        ledger = self._state.ledger
        later, reserved = self._outputs()
        blocks = ledger.blocks + ledger.released + self._state.cache.expected_bytes(block.number)
        return blocks + later + reserved - ledger.max_bytes

    def make_room(self, block: Block) -> bool:
        """Return whether the block may be read now; evicts blocks needed later if that suffices.

        Evicts at once for all that the same chunk misses: the store takes its time to free bytes.
        """
        need = self.over_budget(block)
        if need <= 0:
            return True
        cache = self._state.cache
        chunk = block.waiting[block.next_use]
        beyond = cache.absent_bytes(chunk) - cache.expected_bytes(block.number)
        # Rule 2: a block may displace any block needed later.
        return self._free(need, block.next_use, beyond)

    def _outputs(self) -> tuple[int, int]:
        """Return the bytes of outputs of later steps, and the bytes reserved for the step due.

        The reserve is a whole step's output, whatever the step due takes of it already.
        """
        state = self._state
        due = state.queue.due_bytes()
        reserved = max(due, state.pace.expected_bytes(state.queue.max_step_cost))
        return state.ledger.decoded - due, reserved

    def _free(self, need: int, key: Key, beyond: int = 0) -> bool:
        """Return whether `need` bytes are free now; else evict blocks needed later than `key`.

        Evicts nothing unless the blocks, and the bytes released before, make up the need. If they
        do, evicts up to `beyond` bytes more. Evicted bytes are free when the store has them back.
        """
        if need <= 0:
            return True
        state = self._state
        missing = need - state.ledger.released
        chosen: dict[int, int] = {}
        blocks = iter(state.cache.evictable(key) if missing + beyond > 0 else [])
        while missing + beyond > 0 and (block := next(blocks, None)) is not None:
            chosen[block.number] = block.nbytes
            missing -= block.nbytes
        if missing > 0 or not chosen:
            return False
        before = state.ledger.total
        state.evict(chosen)
        return before - state.ledger.total >= need
