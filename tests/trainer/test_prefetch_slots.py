"""Slots are reused when everything made of them is gone, and not before."""

import copy
import ctypes
import gc
import operator
import signal
import threading
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch

from rayingest.trainer.prefetch import SlotPool


def filled(pool, value, size=1000):
    """A tensor in a slot of its own; the slot object itself is dropped."""
    array = pool.lease(size).array((size,), np.uint8)
    array[...] = value
    return torch.from_numpy(array)


DERIVED = {
    "itself": lambda t: t,
    "slice": lambda t: t[10:20],
    "view of a view of a view": lambda t: t[1:].view(-1)[1:].reshape(2, -1).T,
    "numpy": lambda t: t.numpy(),
    "slice of numpy": lambda t: t.numpy()[5:][5:].reshape(-1, 2)[::2],
    "tensor of numpy of tensor": lambda t: torch.from_numpy(t.numpy()[3:]),
    "storage": lambda t: t.untyped_storage(),
    "detached": lambda t: t.detach(),
    "other dtype": lambda t: t.view(torch.int16),
    "memoryview": lambda t: memoryview(t.numpy()),
    "dlpack": np.from_dlpack,
    "deep in a structure": lambda t: {"a": [({"b": (t[3:4],)},)]},
    "closure": lambda t: lambda: t,
    "autograd": lambda t: t.float().requires_grad_() * t,
    "shallow copy": copy.copy,
    "set_": lambda t: torch.empty(0, dtype=torch.uint8).set_(t),
}


@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED.keys())
def test_a_slot_is_kept_by_anything_made_of_it(derive):
    """Further leases never touch memory that a derived object refers to; when it is gone, the slot
    is free.
    """
    pool = SlotPool()
    tensor = filled(pool, 7)
    address = tensor.data_ptr()
    derived = derive(tensor)
    del tensor
    for _ in range(5):
        assert filled(pool, 9).data_ptr() != address
    assert pool.leased <= 2
    del derived
    gc.collect()
    again = [filled(pool, 9) for _ in range(pool.slots)]
    assert address in [tensor.data_ptr() for tensor in again]


def test_a_dropped_slot_is_reused_at_once():
    """A loop that keeps one batch at a time needs one arena."""
    pool = SlotPool()
    addresses = {filled(pool, step).data_ptr() for step in range(50)}
    assert len(addresses) == 1
    assert pool.slots == 1


def test_keeping_every_batch_grows_the_pool_and_corrupts_none():
    """100 kept batches keep their contents; the pool shrinks after they are dropped."""
    pool = SlotPool()
    kept = [filled(pool, step) for step in range(100)]
    assert pool.slots == 100
    assert all(bool((tensor == step).all()) for step, tensor in enumerate(kept))
    full = pool.nbytes
    kept.clear()
    for step in range(100):
        filled(pool, step)
    assert pool.slots <= 3
    assert pool.nbytes <= 3 * full // 100


def test_a_cycle_gives_its_slot_back_when_collected():
    """A batch in a reference cycle holds its slot until the collector runs."""
    pool = SlotPool()
    cycle = [filled(pool, 1)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    filled(pool, 2)
    assert pool.slots == 1


def test_arrays_are_aligned_writable_and_apart():
    """Arrays of all dtypes and odd sizes begin at 64-byte boundaries, are writable and do not
    overlap.
    """
    slot = SlotPool().lease(4096)
    arrays = [
        slot.array(shape, dtype)
        for shape, dtype in [
            ((3,), "u1"),
            ((5, 7), np.float32),
            ((), np.int64),
            ((0, 4), "f8"),
            ((2, 1, 3), np.bool_),
        ]
    ]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in arrays)
    for number, array in enumerate(arrays):
        array[...] = number % 2
    assert all((array == number % 2).all() for number, array in enumerate(arrays))
    assert [array.shape for array in arrays] == [(3,), (5, 7), (), (0, 4), (2, 1, 3)]


def test_more_than_was_leased_goes_into_a_further_arena():
    """A batch larger than announced gets all its arrays, each with its own memory."""
    pool = SlotPool()
    slot = pool.lease(10)
    arrays = [slot.array((50_000,), np.uint8) for _ in range(5)]
    for number, array in enumerate(arrays):
        array[...] = number
    assert (
        [int(array[0]) for array in arrays]
        == [int(array[-1]) for array in arrays]
        == [0, 1, 2, 3, 4]
    )
    assert pool.slots == 5
    del slot, array
    arrays.clear()
    assert pool.leased == 0
    assert pool.slots >= 1


def test_slots_that_are_too_small_are_replaced():
    """Growing batches leave no small arenas behind; varying sizes settle on a few large arenas."""
    pool = SlotPool()
    for size in range(100_000, 3_000_000, 100_000):
        filled(pool, 0, size)
    assert pool.slots == 1
    assert pool.nbytes < 1.2 * 3_000_000
    sizes = np.random.default_rng(0).integers(100_000, 3_000_000, 200)
    held = []
    for size in sizes:
        held = [*held[-2:], filled(pool, 1, int(size))]
    assert pool.slots <= 4
    assert pool.nbytes <= 4 * 1.2 * 3_000_000


def test_nearly_equal_batches_share_slots():
    """A size that differs by a few per cent allocates nothing."""
    pool = SlotPool()
    addresses = {filled(pool, 0, 1_000_000 + 1_000 * step).data_ptr() for step in range(30)}
    assert len(addresses) <= 2


def test_memory_outlives_its_pool():
    """A batch stays valid after its pool is gone."""
    pool = SlotPool()
    tensor = filled(pool, 5)
    del pool
    gc.collect()
    assert bool((tensor == 5).all())


def test_plain_memory_counts_as_not_pinned():
    """`pinned_bytes` is 0 for a pool that does not pin."""
    pool = SlotPool(pin=False)
    filled(pool, 0)
    assert pool.pinned_bytes == 0
    assert pool.nbytes >= 1000


def test_threads_never_share_a_slot():
    """Four threads lease, write, check and drop slots without seeing each other's bytes; the counts
    add up.
    """
    pool = SlotPool()
    wrong = []

    def work(number):
        held = []
        for step in range(300):
            value = (number * 61 + step) % 251
            held.append((value, filled(pool, value, 500 + step)))
            if len(held) == 3:
                expected, tensor = held.pop(step % 3)
                if not bool((tensor == expected).all()):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= pool.slots <= 4 * 4 + 2  # held by a thread, and spare
    assert pool.leased == 0


class Alarm(Exception):
    """Raised by the handler of a signal."""


def test_a_signal_during_a_long_call_is_not_lost_in_a_leases_end():
    """A signal arrives while C code runs, which then drops a batch. No Python code may run there:
    an exception of the signal's handler would be lost.
    """

    def handle(number, frame):
        raise Alarm

    pool = SlotPool()
    batches = {number: filled(pool, number) for number in range(3)}
    arrive = partial(ctypes.CDLL(None)["raise"], signal.SIGUSR1.value)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Alarm):
            deque(map(operator.call, [arrive, batches.clear]), maxlen=0)  # no bytecode in between
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not batches
    assert pool.leased == 0
    assert pool.slots == 3
