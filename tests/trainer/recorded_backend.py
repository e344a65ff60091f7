"""A device that does work only when a test says so, to play every order of completion.

Copies read the host's memory by address when they run, not when they are issued. Consumers read
device memory when they run. Memory that Python has dropped is overwritten at once, unless a stream
was recorded as its user. So a broken ordering rule shows as wrong contents, as on a real device,
but every time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from rayingest.plan.protocols import Batch
from rayingest.trainer.prefetch import DevicePrefetcher, SlotPool

NOT_COPIED, DROPPED = 0xEE, 0xDD


class RecordedStream:
    """Work in order; each item returns whether it could be done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: deque[Callable[[], bool]] = deque()

    def add(self, action: Callable[[], object]) -> None:
        self.work.append(lambda: (action(), True)[1])

    def run(self, items: int | None = None) -> int:
        """Do this many items, or all, until one must wait; return how many were done."""
        done = 0
        while self.work and (items is None or done < items) and self.work[0]():
            self.work.popleft()
            done += 1
        return done


class RecordedEvent:
    def __init__(self, stream: RecordedStream) -> None:
        self.done = False
        self.stream = stream
        stream.add(lambda: setattr(self, "done", True))

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        while not self.done and self.stream.run(1):
            pass
        assert self.done


class RecordedBackend:
    """A backend with a log of its calls. `eager` does all work as soon as it is issued."""

    def __init__(self, eager: bool = False) -> None:
        self.eager = eager
        self.copy_stream = RecordedStream("copy")
        self.consumer = RecordedStream("consumer")
        self.log: list[tuple[str, ...]] = []
        self._blocks: dict[int, np.ndarray] = {}
        self._used_by: dict[int, list[RecordedStream]] = {}

    # What the prefetcher calls.

    def current_stream(self) -> RecordedStream:
        return self.consumer

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        self.log.append(("copy", self.copy_stream.name))
        address, nbytes = (
            host.data_ptr(),
            host.nbytes,
        )  # an address, as a device has it: holds nothing alive
        tensor, block = self._allocate(nbytes, self.copy_stream)
        self.copy_stream.add(
            lambda: np.copyto(block, np.frombuffer(ctypes.string_at(address, nbytes), np.uint8))
        )
        self._progress()
        return tensor.view(host.dtype).view(host.shape)

    def record(self, stream: RecordedStream) -> RecordedEvent:
        self.log.append(("record", stream.name))
        event = RecordedEvent(stream)
        self._progress()
        return event

    def wait(self, stream: RecordedStream, event: RecordedEvent) -> None:
        self.log.append(("wait", stream.name))
        stream.work.append(event.query)
        self._progress()

    def record_stream(self, tensor: torch.Tensor, stream: RecordedStream) -> None:
        self.log.append(("record_stream", stream.name))
        self._used_by[tensor.data_ptr()].append(stream)

    # What a training loop does.

    def read(self, tensor: torch.Tensor, into: list[bytes]) -> None:
        """Run a kernel on the current stream that appends the tensor's bytes to `into`."""
        block = self._blocks[tensor.data_ptr()]
        self.current_stream().add(lambda: into.append(block.tobytes()))

    def add_one(self, tensor: torch.Tensor) -> torch.Tensor:
        """Run a kernel on the current stream; return a new uint8 tensor of the same shape."""
        self.log.append(("kernel", self.current_stream().name))
        source = self._blocks[tensor.data_ptr()]
        result, block = self._allocate(tensor.nbytes, self.current_stream())
        self.current_stream().add(lambda: np.copyto(block, source + np.uint8(1)))
        return result.view(tensor.shape)

    def finish(self) -> None:
        while self.copy_stream.run() + self.consumer.run():
            pass

    def _progress(self) -> None:
        if self.eager:
            self.finish()

    def _allocate(self, nbytes: int, stream: RecordedStream) -> tuple[torch.Tensor, np.ndarray]:
        block = np.full(max(nbytes, 1), NOT_COPIED, np.uint8)[:nbytes]
        owner = block[:]
        address = owner.ctypes.data
        self._blocks[address] = block
        # Work on the allocating stream is in order with the next use of the memory.
        self._used_by[address] = [] if stream is self.copy_stream else [stream]
        weakref.finalize(owner, self._freed, address, block)
        return torch.from_numpy(owner), block

    def _freed(self, address: int, block: np.ndarray) -> None:
        del self._blocks[address]
        users = self._used_by.pop(address)
        for stream in users:
            stream.add(lambda: block.fill(DROPPED))
        if not users:
            block.fill(DROPPED)


class KeepingPool(SlotPool):
    """A pool whose memory outlives it, because addresses are read late."""

    def __init__(self) -> None:
        super().__init__(pin=False)
        self.kept: list[object] = []

    def _drop(self, arena) -> None:
        self.kept.append(arena)
        super()._drop(arena)


class WritingSource:
    """Batches 0, 1, ... of epoch 0; batch s is filled with bytes s, in a slot of the pool."""

    def __init__(self, pool: SlotPool, rows: int = 8, width: int = 16) -> None:
        self.pool, self.rows, self.width = pool, rows, width
        self.step = 0

    def get(self) -> Batch:
        slot = self.pool.lease(self.rows * (self.width + 8))
        image = slot.array((self.rows, self.width), np.uint8)
        index = slot.array((self.rows,), np.int64)
        image[...] = self.step
        index[...] = np.arange(self.rows) + self.step * self.rows
        names = [f"{self.step}-{row}" for row in range(self.rows)]
        self.step += 1
        return Batch(
            0, self.step - 1, {"image": image, "__index__": index, "name": names}, buffer=slot
        )

    def expected(self, step: int, more: int = 0) -> tuple[bytes, bytes]:
        index = np.arange(self.rows) + step * self.rows
        return bytes([step + more] * self.rows * self.width), index.astype(np.int64).tobytes()


def drive(
    backend: RecordedBackend, schedule: Callable[[RecordedBackend], object], steps: int = 24
) -> KeepingPool:
    """Run a loop over a prefetcher and check what it reads.

    `schedule` runs the device after each step.
    """
    pool = KeepingPool()
    source = WritingSource(pool)
    prefetcher = DevicePrefetcher(source.get, backend, 2, {"image": backend.add_one})
    images: list[bytes] = []
    indexes: list[bytes] = []
    for step in range(steps):
        position, values = prefetcher.next()
        assert position == (0, step)
        assert values["name"] == [f"{step}-{row}" for row in range(source.rows)]
        backend.read(values["image"], images)
        backend.read(values["__index__"], indexes)
        del values
        schedule(backend)
    backend.finish()
    for step in range(steps):
        assert (images[step], indexes[step]) == source.expected(step, more=1), f"step {step}"
    prefetcher.close()
    return pool
