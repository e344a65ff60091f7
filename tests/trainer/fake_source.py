"""A source and a plan in pure Python, and what a loader over them should yield."""

import numpy as np

from rayingest.errors import DataError, StateError
from rayingest.plan.protocols import Batch

STEPS = 4


class Plan:
    """Epochs of `steps` batches; a state names its data."""

    def __init__(self, steps=STEPS, data="d1"):
        self.steps, self.data = steps, data
        self.rank, self.world_size = 1, 3

    def steps_in(self, epoch):
        return self.steps

    def reached(self, epoch, step):
        pass

    def state(self, epoch, step):
        return {"version": 1, "data": self.data, "epoch": epoch, "step": step}

    def position(self, state):
        if state.get("data") != self.data:
            raise StateError(f"data: the state has {state.get('data')}, this loader {self.data}")
        return state["epoch"], state["step"]


class Source:
    """Endless batches whose `__index__` is 100 * epoch + step, in plain arrays or in slots."""

    def __init__(self, steps=STEPS, pool=None, failing=()):
        self.steps, self.pool, self.failing = steps, pool, set(failing)
        self.at = None
        self.starts, self.gets, self.closed = [], [], 0
        self.on_get = lambda: None

    def start(self, epoch, step):
        assert 0 <= step < self.steps
        self.starts.append((epoch, step))
        self.at = (epoch, step)

    def get(self):
        assert self.at is not None
        assert not self.closed
        self.on_get()
        epoch, step = self.at
        self.gets.append(self.at)
        self.at = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        if (epoch, step) in self.failing:
            raise DataError(f"broken at {epoch}, {step}", shard="s.tar")
        slot = self.pool and self.pool.lease(16)
        x = slot.array((1,), np.int64) if slot else np.empty(1, np.int64)
        x[0] = 100 * epoch + step
        return Batch(epoch, step, {"__index__": x, "name": [f"{epoch}/{step}"]}, buffer=slot)

    def stats(self):
        return {"read_bytes": 5, "batches": "hidden by the loop's own"}

    def close(self):
        self.closed += 1


def xs(batches):
    """Return the numbers that the batches hold."""
    return [int(batch["__index__"][0]) for batch in batches]


def epoch_of(number, begin=0, steps=STEPS):
    """Return the numbers of an epoch's batches, from step `begin` on."""
    return [100 * number + step for step in range(begin, steps)]
