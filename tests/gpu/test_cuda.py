"""The ordering rules of `tests/trainer` on a real CUDA device. Needs PyTorch and NumPy, but neither
Ray nor pyarrow.
"""

import threading

import numpy as np
import pytest
import torch

from rayingest.plan.protocols import Batch
from rayingest.trainer.device import CudaBackend, resolve_device
from rayingest.trainer.loader import Loader
from rayingest.trainer.prefetch import DevicePrefetcher, SlotPool

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"
)

SHORT, LONG = (
    5_000_000,
    500_000_000,
)  # clock cycles: a few milliseconds, a quarter of a second or more
ROWS, WIDTH = 64, 16 * 1024


def content(step):
    """uint8[ROWS, WIDTH] that tells each step from every other in every row."""
    rows = np.arange(ROWS, dtype=np.uint8)[:, None] * 3 + np.uint8(step * 7 % 256)
    return np.broadcast_to(rows, (ROWS, WIDTH))


class Source:
    """Endless batches written into slots of a pool, or into arrays of their own."""

    def __init__(self, pool=None, steps=1_000_000):
        self.pool, self.steps = pool, steps
        self.at = (0, 0)

    def start(self, epoch, step):
        self.at = (epoch, step)

    def get(self):
        epoch, step = self.at
        self.at = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        slot = self.pool and self.pool.lease(ROWS * (WIDTH + 8))
        make = slot.array if slot else np.empty
        image, index = make((ROWS, WIDTH), np.uint8), make((ROWS,), np.int64)
        image[...] = content(epoch * 100 + step)
        index[...] = np.arange(ROWS) + ROWS * step
        return Batch(
            epoch, step, {"image": image, "__index__": index, "name": ["n"] * ROWS}, buffer=slot
        )

    def stats(self):
        return {}

    def close(self):
        pass


class Plan:
    steps, rank, world_size = 6, 0, 1

    def steps_in(self, epoch):
        return self.steps

    def state(self, epoch, step):
        return {"epoch": epoch, "step": step}

    def position(self, state):
        return state["epoch"], state["step"]


class LateCopies(CudaBackend):
    """Every copy begins a few milliseconds after it is issued."""

    def copy(self, host):
        with torch.cuda.stream(self.copy_stream):
            torch.cuda._sleep(SHORT)
        return super().copy(host)


class WithoutWait(LateCopies):
    def wait(self, stream, event):
        pass


class SlotsGivenBackEarly(LateCopies):
    def record(self, stream):
        return EarlyEvent(super().record(stream))

    def wait(self, stream, event):
        super().wait(stream, event.event)


class EarlyEvent:
    def __init__(self, event):
        self.event = event
        self.synchronize = event.synchronize

    def query(self):
        return True


class WithoutRecordStream(CudaBackend):
    def record_stream(self, tensor, stream):
        pass


@pytest.fixture
def device():
    """The device, idle at both ends of a test."""
    device = resolve_device("cuda")
    torch.cuda.synchronize(device)
    yield device
    torch.cuda.synchronize(device)


def wrong_steps(backend, late_consumer=0, steps=30):
    """Run a loop that reads each batch some cycles late and drops it at once; the steps whose
    contents were wrong.
    """
    prefetcher = DevicePrefetcher(Source(SlotPool(pin=True)).get, backend, 2)
    stream = torch.cuda.Stream(device=backend.device)
    read = []
    with torch.cuda.stream(stream):
        # Memory for what is read is made beforehand, so that it cannot be what the copies are put
        # into.
        places = [
            (
                torch.empty((ROWS, WIDTH), dtype=torch.uint8, device=backend.device),
                torch.empty(ROWS, dtype=torch.int64, device=backend.device),
            )
            for _ in range(steps)
        ]
        stream.synchronize()
        for step, (image, index) in enumerate(places):
            position, values = prefetcher.next()
            assert position == (0, step)
            if late_consumer:
                torch.cuda._sleep(late_consumer)
            image.copy_(values["image"])
            index.copy_(values["__index__"])
            del values
            read.append((image, index))
    torch.cuda.synchronize(backend.device)
    prefetcher.close()
    return [
        step
        for step, (image, index) in enumerate(read)
        if not np.array_equal(image.cpu().numpy(), content(step))
        or not np.array_equal(index.cpu().numpy(), np.arange(ROWS) + ROWS * step)
    ]


@pytest.mark.parametrize("late_consumer", [0, SHORT])
@pytest.mark.parametrize("backend", [CudaBackend, LateCopies])
def test_contents_arrive_however_late_copies_and_kernels_are(device, backend, late_consumer):
    """Every step reads its own bytes, with copies, consumer, both or neither delayed."""
    assert wrong_steps(backend(device), late_consumer) == []


@pytest.mark.parametrize(
    ("broken", "late_consumer"),
    [(WithoutWait, 0), (SlotsGivenBackEarly, 0), (WithoutRecordStream, SHORT)],
)
def test_each_broken_rule_shows(device, broken, late_consumer):
    """With one rule broken the same loop reads wrong bytes: the test above can fail."""
    assert wrong_steps(broken(device), late_consumer)


def test_next_does_not_wait_for_copies(device):
    """The host is given a batch while its copies are still held up on the copy stream."""
    backend = CudaBackend(device)
    prefetcher = DevicePrefetcher(Source(SlotPool(pin=True)).get, backend, 2)
    for _ in range(
        5
    ):  # memory for the slots and on the device exists from here on: making it may wait
        prefetcher.next()
    torch.cuda.synchronize(device)
    with torch.cuda.stream(backend.copy_stream):
        torch.cuda._sleep(LONG)
    prefetcher.next()
    assert not backend.copy_stream.query()
    prefetcher.close()
    assert backend.copy_stream.query()


def test_copies_run_beside_the_computation(device):
    """Copies issued while a long kernel runs are done before it is."""
    backend = CudaBackend(device)
    prefetcher = DevicePrefetcher(Source(SlotPool(pin=True)).get, backend, 2)
    for _ in range(5):  # memory for the slots and on the device exists from here on
        _, values = prefetcher.next()
    torch.cuda.synchronize(device)
    torch.cuda._sleep(LONG)
    computed = torch.cuda.current_stream(device).record_event()
    _, values = prefetcher.next()
    backend.copy_stream.synchronize()
    assert not computed.query()
    assert values["image"].shape == (ROWS, WIDTH)


def test_memory_is_flat_over_200_batches(device):
    """Pinned and device memory stand still once a loop has warmed up, and so does the number of
    slots.
    """
    pool = SlotPool(pin=True)
    prefetcher = DevicePrefetcher(Source(pool).get, CudaBackend(device), 2)
    used = []
    for _ in range(200):
        _, values = prefetcher.next()
        values["image"].sum().item()  # as a loop that looks at its loss
        used.append((pool.slots, pool.pinned_bytes, torch.cuda.memory_reserved(device)))
    assert pool.pinned_bytes > 0
    assert len(set(used[50:])) == 1
    assert used[-1][0] <= 6


def test_normalising_runs_on_the_consumers_stream(device):
    """`after_copy` turns bytes into floats behind the wait, on the stream of whoever asked, with
    the right values.
    """
    streams = []

    def normalise(image):
        streams.append(torch.cuda.current_stream(device))
        return image.float().div(255).sub(0.5)

    prefetcher = DevicePrefetcher(
        Source(SlotPool(pin=True)).get, LateCopies(device), 2, {"image": normalise}
    )
    consumer = torch.cuda.Stream(device=device)
    with torch.cuda.stream(consumer):
        for step in range(10):
            _, values = prefetcher.next()
            expected = torch.from_numpy(content(step).copy()).float().div(255).sub(0.5)
            assert values["image"].dtype == torch.float32
            assert torch.allclose(values["image"].cpu(), expected, atol=1e-6)
    assert set(streams) == {consumer}


def test_a_loader_gives_the_same_on_the_device_as_on_the_cpu(device):
    """From slots and from other arrays, over epochs, a break and a resume; lists stay lists."""

    def run(**options):
        pool = options.get("slots")
        out = []
        with Loader(Source(pool, Plan.steps), Plan(), **options) as loader:
            for count, batch in enumerate(loader):
                out.append(batch)
                if count == 2:
                    break
            out += list(loader)
            loader.load_state_dict({"epoch": 1, "step": 4})
            out += list(loader)
            assert (loader.epoch, loader.step) == (2, 0)
            return out, loader.stats()

    reference, _ = run(device="cpu")
    for options in ({"slots": SlotPool(pin=True)}, {}, {"pin_memory": False}):
        batches, stats = run(device="cuda", **options)
        assert len(batches) == len(reference) == 3 + 6 + 2
        assert (stats["pinned_bytes"] > 0) == (options.get("pin_memory") is not False)
        for batch, expected in zip(batches, reference, strict=True):
            assert batch["image"].device == device
            assert torch.equal(batch["image"].cpu(), expected["image"])
            assert torch.equal(batch["__index__"].cpu(), expected["__index__"])
            assert batch["name"] == expected["name"]


def test_another_thread_may_iterate(device):
    """The loader's device does not depend on the current device or stream of the thread that made
    it.
    """
    found = []

    def consume():
        stream = torch.cuda.Stream(device=device)
        with torch.cuda.stream(stream):
            for batch in loader:
                found.append(
                    bool(
                        (batch["image"].cpu() == torch.from_numpy(content(len(found)).copy())).all()
                    )
                )

    with Loader(Source(None, Plan.steps), Plan(), device=device) as loader:
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join()
    assert found == [True] * Plan.steps


def test_pinned_batches_on_the_cpu_path(device):
    """Asked for, the CPU path's tensors lie in pinned memory, and are the user's to keep."""
    pool = SlotPool(pin=True)
    with Loader(Source(pool, Plan.steps), Plan(), slots=pool) as loader:
        kept = list(loader) + list(loader)
        assert loader.stats()["slots"] == len(kept)
    assert all(batch["image"].is_pinned() for batch in kept)
    for number, batch in enumerate(kept):
        epoch, step = divmod(number, Plan.steps)
        assert np.array_equal(batch["image"].numpy(), content(epoch * 100 + step))


def test_wide_dtypes_cross_unchanged(device):
    """Unsigned, half, complex and boolean arrays arrive bit for bit."""
    columns = {code: np.arange(1, 7).astype(code) for code in "?bhilBHILefdFD"}
    prefetcher = DevicePrefetcher(
        lambda: Batch(0, 0, dict(columns)), CudaBackend(device), 0, staging=SlotPool(pin=True)
    )
    _, values = prefetcher.next()
    for code, array in columns.items():
        assert np.array_equal(values[code].cpu().numpy(), array), code
    prefetcher.close()
