"""Eviction: what fits the budget now, and what is given up to make room. Between what happened (`outcomes`) and orders.

Blocks, whether being read or in the store, and outputs, whether being decoded or ready, are charged against
`max_bytes`. Room for one whole step is kept for the step that is due, and outputs of later steps leave room for one
block beside it. So whatever is in flight, the step that is due can always go on, block by block if need be, and with
it everything else: that is why nothing here can wait for itself.
"""

from __future__ import annotations

import math

from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import Block
from rayingest.plan.dispatch.chunks import FIRST, Key, Piece
from rayingest.plan.dispatch.outcomes import Outcomes

_ADVISED = 1.125
"""Too small a budget is said together with so many times what would do for blocks and rows as large as seen so far."""


class Eviction(Outcomes):
    """One stream's state, and its room."""

    def _expected(self, piece: Piece) -> int:
        """Bytes that the piece's output is expected to take in the store."""
        return piece.known or self.pace.output_bytes(piece.size)

    def _fits_output(self, piece: Piece) -> bool:
        """Whether a decode of the piece has room for its output; what is needed later is given up for the step due.

        One that it is stuck with is tried in what room there is: rows may be smaller than the largest.
        """
        size = self._expected(piece)
        if piece.step == self.backlog.due:
            if self._free(self.held + size - self.limits.max_bytes, piece.key):
                return True
            if not self._is_stuck(piece):
                return False
            if self.held + size <= self.limits.max_bytes:
                return True
            if piece.known and len(piece.blocks) == 1:
                self._fail_for_room(piece.blocks[0], self.outputs.nbytes + piece.known)
            return not piece.known and len(piece.blocks) == 1
        later, kept = self._outputs()
        later += size + self.lingering
        return (
            later + kept + max(self.residency.held, self.residency.largest) <= self.limits.max_bytes
        )

    def _is_stuck(self, piece: Piece) -> bool:
        """Whether there will not be more room for this piece of the step due."""
        return self._has_given_up(FIRST, besides=piece.blocks)

    def _has_given_up(self, key: Key, besides: tuple[int, ...] = ()) -> bool:
        """Whether nothing is under way, and the store has back all that is not needed before `key`: other blocks than
        these, and outputs of later steps, and such as others of no use are kept with.
        """
        if self.workforce.tasks or self.decode_bytes or self.lingering:
            return False  # that may make the room
        victims = self.residency.victims(key)
        self._evict(
            {block.number: block.nbytes for block in victims if block.number not in besides}
        )
        for piece in self.backlog.done():
            if piece.step != self.backlog.due or not self.outputs.is_whole(piece.task):
                self._redo(piece)
        return not self.lingering

    def _fail_for_room(self, block: int, chunk: int) -> None:
        """The budget is too small for this block and outputs of so many bytes."""
        size = self.residency.size(block)
        chunk = max(chunk, self.pace.output_bytes(self.backlog.longest))
        reason = f"max_bytes={self.limits.max_bytes} can't hold one block of {size} bytes and one batch of {chunk}"
        enough = math.ceil(_ADVISED * (self.residency.most() + chunk))
        self._fail(ev.Fail(f"{reason}; give it {enough} or more", (block,)))

    def _redo(self, piece: Piece) -> None:
        """Give up a piece's output; it is made again later."""
        self._commands.append(ev.Discard(piece.task, (piece.index,)))
        self._release(piece)
        piece.alone = True
        self._wait(piece, [piece.step + 1] * len(piece.blocks))

    def _outputs(self) -> tuple[int, int]:
        """Bytes of outputs of steps that are not due, and bytes kept for the step due, whatever it has used of them."""
        due = self.backlog.due_output_bytes()
        return self.output_bytes - due, max(due, self.pace.output_bytes(self.backlog.longest))

    def _over_budget(self, block: Block) -> int:
        """Bytes by which reading this block now would exceed the budget, the due step's room kept."""
        later, kept = self._outputs()
        held = self.residency.held + self.lingering + self.residency.size(block.number)
        return held + later + kept - self.limits.max_bytes

    def _make_room(self, block: Block) -> bool:
        """Whether the block may be read now; gives up blocks that are needed later where that makes the room.

        At once for all that the same piece lacks, as the store takes its time to have anything back.
        """
        need = self._over_budget(block)
        if need <= 0:
            return True
        lacking = self.residency.wanted_bytes(block.uses[block.next_use]) - self.residency.size(
            block.number
        )
        return self._free(need, block.next_use, lacking)

    def _free(self, need: int, key: Key, beyond: int = 0) -> bool:
        """Whether so many bytes are free now; if not, blocks needed later than `key` are given up for them.

        They are free once the store has them back. Nothing is given up unless it makes up the need; where it does, as
        far as there are such blocks, `beyond` that.
        """
        if need <= 0:
            return True
        missing = need - self.lingering
        chosen: dict[int, int] = {}
        victims = iter(self.residency.victims(key) if missing + beyond > 0 else [])
        while missing + beyond > 0 and (victim := next(victims, None)) is not None:
            chosen[victim.number] = victim.nbytes
            missing -= victim.nbytes
        if missing > 0 or not chosen:
            return False
        before = self.held
        self._evict(chosen)
        return before - self.held >= need

    def _evict(self, sizes: dict[int, int]) -> None:
        for number in sizes:
            self.residency.vanish(self.residency.blocks[number])
        self.counts["blocks_dropped"] += len(sizes)
        self._drop(sizes)
