"""Who works, and at what: readers and decoders with their slots, and the tasks they have."""

from __future__ import annotations

from dataclasses import dataclass

from rayingest.plan.dispatch.chunks import Piece


@dataclass(eq=False)
class Worker:
    """Takes up to `slots` tasks at a time; `busy` of them are taken, and charged with `nbytes` together."""

    name: str
    role: str
    slots: int
    busy: int = 0
    nbytes: int = 0


@dataclass(eq=False)
class Task:
    """A read of blocks or a decode of pieces under way, and what each of them is charged with meanwhile.

    `weight` is how many of its worker's slots it takes. `hedged`: another task does the same, in case this one is lost.
    """

    number: int
    worker: Worker
    blocks: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    charges: tuple[int, ...] = ()
    weight: int = 1
    hedged: bool = False


class Workforce:
    """All workers by name and all tasks by number; a worker's `busy` is the weight of its tasks."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[int, Task] = {}
        self._slots: dict[str, int] = {}
        self._next = 0
        self._last_reader = ""

    def join(self, name: str, role: str, slots: int) -> None:
        """A worker comes."""
        self.workers[name] = Worker(name, role, slots)
        self._count_slots()

    def lose(self, name: str) -> list[Task]:
        """A worker goes; returns the tasks it had, which are no longer under way."""
        if self.workers.pop(name, None) is None:
            return []
        lost = [task for task in self.tasks.values() if task.worker.name == name]
        for task in lost:
            del self.tasks[task.number]
        self._count_slots()
        return lost

    def free(self, role: str, other_than: Worker | None = None) -> Worker | None:
        """The worker of this role with the most free slots, if any has one; another than that one where there is."""
        able = [
            worker
            for worker in self.workers.values()
            if worker.role == role and worker.busy < worker.slots
        ]
        return min(
            able,
            key=lambda worker: (worker is other_than, worker.busy / worker.slots),
            default=None,
        )

    def same_reader(self) -> Worker | None:
        """The reader that had the last task, as long as it is there; else any."""
        last = self.workers.get(self._last_reader)
        return last if last is not None and last.busy < last.slots else self.free("reader")

    def slots(self, role: str) -> int:
        """Tasks that the workers of this role can have at a time."""
        return self._slots.get(role, 0)

    def _count_slots(self) -> None:
        self._slots.clear()
        for worker in self.workers.values():
            self._slots[worker.role] = self.slots(worker.role) + worker.slots

    def begin(
        self,
        worker: Worker,
        charges: tuple[int, ...],
        *,
        blocks: tuple[int, ...] = (),
        pieces: tuple[Piece, ...] = (),
        weight: int = 1,
    ) -> Task:
        """A new task for the worker."""
        task = Task(self._next, worker, blocks, pieces, charges, weight)
        self.tasks[task.number] = task
        self._next += 1
        self._last_reader = worker.name if blocks else self._last_reader
        worker.busy += weight
        worker.nbytes += sum(charges)
        return task

    def end(self, number: int) -> Task | None:
        """The task ended; None where it had been given up before."""
        task = self.tasks.pop(number, None)
        if task is not None:
            task.worker.busy -= task.weight
            task.worker.nbytes -= sum(task.charges)
        return task
