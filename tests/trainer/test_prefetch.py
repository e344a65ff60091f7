"""Copying ahead to a device keeps its rules, and the check of the rules can fail."""

import gc

import numpy as np
import pytest
import torch

from rayingest.errors import ConfigError, DataError
from rayingest.plan.protocols import Batch
from rayingest.trainer.prefetch import DevicePrefetcher, HostBatches, SlotPool, host_value
from tests.trainer.recorded_backend import (
    KeepingPool,
    RecordedBackend,
    RecordedEvent,
    WritingSource,
    drive,
)


def nothing(backend):
    pass


def everything(backend):
    backend.finish()


def consumer_first(backend):
    backend.consumer.run()
    backend.copy_stream.run(3)


def copies_first(backend):
    backend.copy_stream.run()
    backend.consumer.run(2)


def at_random(seed):
    rng = np.random.default_rng(seed)

    def schedule(backend):
        for _ in range(4):
            stream = (backend.copy_stream, backend.consumer)[rng.integers(2)]
            stream.run(int(rng.integers(4)))

    return schedule


SCHEDULES = [nothing, everything, consumer_first, copies_first, *map(at_random, range(40))]


def flat(get, backend=None, depth=2, **options):
    return DevicePrefetcher(get, backend or RecordedBackend(eager=True), depth, **options)


def test_contents_arrive_however_late_the_device_is():
    """Whatever the order in which copies and kernels complete, each step reads its own batch."""
    for schedule in SCHEDULES:
        drive(RecordedBackend(), schedule)


def test_order_of_calls_for_one_batch():
    """Copies and an event behind them; then wait, record_stream, and only then kernels."""
    backend = RecordedBackend()
    source = WritingSource(SlotPool())
    DevicePrefetcher(source.get, backend, 0, {"image": backend.add_one}).next()
    assert backend.log == [
        ("copy", "copy"),
        ("copy", "copy"),
        ("record", "copy"),
        ("wait", "consumer"),
        ("record_stream", "consumer"),
        ("record_stream", "consumer"),
        ("kernel", "consumer"),
    ]


class WithoutWait(RecordedBackend):
    def wait(self, stream, event):
        pass


class WaitOnTheWrongStream(RecordedBackend):
    def wait(self, stream, event):
        super().wait(self.copy_stream, event)


class WithoutRecordStream(RecordedBackend):
    def record_stream(self, tensor, stream):
        pass


class EventBeforeTheCopies(RecordedBackend):
    """Records the event on another stream that has no work before it."""

    def record(self, stream):
        event = RecordedEvent(self.consumer)
        event.done = True
        return event


class SlotsGivenBackEarly(RecordedBackend):
    def record(self, stream):
        event = super().record(stream)
        done = event.query
        event.query = lambda: True
        event.really_done = done
        return event

    def wait(self, stream, event):
        stream.work.append(event.really_done)


@pytest.mark.parametrize(
    "broken",
    [
        WithoutWait,
        WaitOnTheWrongStream,
        WithoutRecordStream,
        EventBeforeTheCopies,
        SlotsGivenBackEarly,
    ],
)
def test_each_broken_rule_is_noticed(broken):
    """The check fails as soon as one rule is broken."""
    noticed = 0
    for schedule in SCHEDULES:
        try:
            drive(broken(), schedule)
        except AssertionError:
            noticed += 1
    assert noticed > len(SCHEDULES) // 2


def test_slots_are_reused_once_copies_are_done():
    """A device that keeps up needs a few slots; one that never completes needs one per batch."""
    assert drive(RecordedBackend(), everything).slots <= 4
    assert drive(RecordedBackend(), nothing).slots + 1 >= 24


def test_depth_bounds_what_is_issued_ahead():
    """After the batch in hand, exactly `depth` more have been fetched."""
    for depth in range(4):
        source = WritingSource(SlotPool())
        prefetcher = flat(source.get, depth=depth)
        for step in range(5):
            prefetcher.next()
            assert source.step == step + 1 + depth


def test_copies_are_traced():
    """Each batch's copies are a span with the batch's position."""
    told = []
    batches = flat(WritingSource(SlotPool()).get, depth=1, span=lambda *span: told.append(span))
    batches.next()
    assert [(stage, who, position) for stage, _, who, position in told] == [
        ("copy", "loop", (0, 0)),
        ("copy", "loop", (0, 1)),
    ]


def test_runs_ahead_only_when_the_source_is_ready():
    """A finished batch is yielded without waiting for later ones."""
    answers = [True, False, False, False, True, True]
    source = WritingSource(SlotPool())
    prefetcher = flat(source.get, depth=2, ready=lambda: answers.pop(0))
    fetched = []
    for _ in range(4):
        prefetcher.next()
        fetched.append(source.step)
    assert fetched == [2, 2, 3, 6]


def test_runs_ahead_only_where_it_may():
    """`may_run_ahead` stops the prefetcher until the loop asks for the next batch."""
    source = WritingSource(SlotPool())
    prefetcher = flat(source.get, depth=3, may_run_ahead=lambda position: position[1] != 2)
    fetched = []
    for _ in range(4):
        prefetcher.next()
        fetched.append(source.step)
    assert fetched == [3, 3, 3, 7]


def test_an_error_met_ahead_comes_at_its_step():
    """The batches before the failed one are yielded first, then its error, once."""
    source = WritingSource(SlotPool())

    def get():
        if source.step == 3:
            source.step += 1
            raise DataError("broken", shard="a.tar")
        return source.get()

    prefetcher = flat(get, depth=2)
    assert [prefetcher.next()[0] for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    assert source.step == 4
    with pytest.raises(DataError, match="broken"):
        prefetcher.next()
    assert prefetcher.next()[0] == (0, 4)


def test_an_interrupt_while_running_ahead_loses_nothing():
    """Ctrl-C in the source is raised at once, and the batches already issued stay."""
    source = WritingSource(SlotPool())
    pressed = []

    def get():
        if source.step == 1 and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return source.get()

    prefetcher = flat(get, depth=2)
    with pytest.raises(KeyboardInterrupt):
        prefetcher.next()
    assert [prefetcher.next()[0] for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


def test_a_failing_copy_keeps_the_slot_of_those_before_it():
    """A batch whose copies were issued in part still holds its memory."""

    class OutOfMemory(RecordedBackend):
        def copy(self, host):
            if host.dtype == torch.int64:
                raise RuntimeError("out of memory")
            return super().copy(host)

    backend, pool = OutOfMemory(), KeepingPool()
    prefetcher = DevicePrefetcher(WritingSource(pool).get, backend, 0)
    with pytest.raises(RuntimeError, match="out of memory"):
        prefetcher.next()
    gc.collect()
    assert (pool.slots, pool.leased) == (1, 1)
    backend.finish()
    prefetcher.close()
    assert (pool.slots, pool.leased) == (1, 0)


def test_reset_drops_what_was_fetched_but_not_running_copies():
    """After a reset, the next batch is the source's next one, and a slot with a running copy is
    still held.
    """
    backend, pool = RecordedBackend(), KeepingPool()
    source = WritingSource(pool)
    prefetcher = DevicePrefetcher(source.get, backend, 2)
    prefetcher.next()
    prefetcher.reset()
    assert pool.slots == 3
    assert pool.leased == 3
    assert prefetcher.next()[0] == (0, 3)


def test_close_waits_for_copies_and_frees_all():
    """Closing twice has no further effect; afterwards no slot is in use."""
    backend, pool = RecordedBackend(), KeepingPool()
    prefetcher = DevicePrefetcher(WritingSource(pool).get, backend, 2)
    _, values = prefetcher.next()
    prefetcher.close()
    prefetcher.close()
    del values
    assert pool.slots >= 1
    assert pool.leased == 0


def test_arrays_that_own_their_memory_are_staged_once():
    """A batch without a buffer goes through one slot; strings and objects stay as they are."""
    pool = KeepingPool()
    columns = {
        "x": np.arange(12, dtype=">i4").reshape(3, 4).T,
        "name": ["a", "b", "c", "d"],
        "any": np.array([1, "b", None, 2.0], object),
    }
    backend = RecordedBackend(eager=True)
    prefetcher = DevicePrefetcher(lambda: Batch(0, 0, columns), backend, 0, staging=pool)
    _, values = prefetcher.next()
    assert pool.slots == 1
    assert torch.equal(values["x"], torch.arange(12, dtype=torch.int32).reshape(3, 4).T)
    assert values["name"] is columns["name"]
    assert values["any"] is columns["any"]


def test_host_batches_are_the_sources_arrays():
    """On the CPU no array is copied and no batch is fetched ahead; `after_copy` still applies."""
    source = WritingSource(SlotPool())
    batches = HostBatches(source.get, {"image": lambda image: image.float() / 2})
    position, values = batches.next()
    assert position == (0, 0)
    assert source.step == 1
    _, values = batches.next()
    assert values["image"].dtype == torch.float32
    assert torch.equal(values["image"], torch.full((8, 16), 0.5))
    array = np.zeros(3)
    values = HostBatches(lambda: Batch(0, 0, {"x": array})).next()[1]
    values["x"][1] = 7
    assert array[1] == 7


@pytest.mark.parametrize("field", ["label", "name"])
def test_after_copy_of_no_tensor_is_refused(field):
    """The error names the field, which is absent or a list, and the tensors of the batch."""
    batches = HostBatches(WritingSource(SlotPool()).get, {field: lambda x: x})
    with pytest.raises(ConfigError, match=f"'{field}'.*image, __index__"):
        batches.next()


@pytest.mark.parametrize("code", "?bhilqBHILQefdFD")
def test_every_torch_dtype_becomes_a_tensor(code):
    """With the same values; unsigned and complex dtypes, too."""
    array = np.arange(6).astype(code).reshape(2, 3)
    tensor = host_value(array)
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.filterwarnings("error")
def test_awkward_arrays_become_writable_tensors():
    """Read-only, byte-swapped, reversed and oddly strided arrays are copied without a warning."""
    frozen = np.arange(4)
    frozen.flags.writeable = False
    odd = np.zeros(4, np.dtype([("a", "<i4"), ("b", "u1")]))["a"]
    for array in (
        frozen,
        np.arange(4, dtype=">u2"),
        np.arange(4)[::-1],
        odd,
        np.broadcast_to(np.float32(3), (2, 2)),
    ):
        tensor = host_value(array)
        assert np.array_equal(tensor.numpy(), array)
        tensor[...] = 1


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([b"a"]), np.array([None]), np.array(["2020"], "M8[D]")]
)
def test_arrays_without_a_torch_dtype_stay(array):
    """Text, bytes, objects and dates are yielded unchanged."""
    assert host_value(array) is array
