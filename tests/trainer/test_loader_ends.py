"""How a loader fails, runs ahead, counts and closes, over a source that records its calls."""

import gc
import subprocess
import sys

import pytest
import torch

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.trainer import Loader, SlotPool
from tests.trainer.fake_source import STEPS, Plan, Source, epoch_of, xs


def nothing(loader):
    """Do nothing to the loader before the next loop."""


def load_its_own_state(loader):
    loader.load_state_dict(loader.state_dict())


def set_the_same_epoch(loader):
    loader.set_epoch(loader.epoch)


@pytest.mark.parametrize("before", [nothing, load_its_own_state, set_the_same_epoch])
@pytest.mark.parametrize("step", range(STEPS))
def test_the_pass_after_an_error_goes_on_at_the_state(make, step, before):
    """The batches before the error arrive. The next loop begins with the batch that failed, where
    the state says, and tries it again.
    """
    loader, source = make(failing=[(1, step)])
    loader.set_epoch(1)
    running = iter(loader)
    assert xs(next(running) for _ in range(step)) == epoch_of(1)[:step]
    for _ in range(2):
        with pytest.raises(DataError, match=f"broken at 1, {step}"):
            next(running)
        assert (loader.epoch, loader.step) == (1, step)
        assert loader.state_dict() == Plan().state(1, step)
        before(loader)
        running = iter(loader)
    source.failing.clear()
    assert xs(loader) == epoch_of(1, step)
    assert xs(loader) == epoch_of(2)


def test_an_interrupted_wait_loses_no_batch(make):
    """Ctrl-C while the loader waits ends the loop; the next loop goes on with the same batch."""
    loader, source = make()
    running = iter(loader)
    next(running)

    def interrupt():
        source.on_get = lambda: None
        raise KeyboardInterrupt

    for step in range(1, STEPS):
        source.on_get = interrupt
        with pytest.raises(KeyboardInterrupt):
            next(running)
        assert (loader.epoch, loader.step) == (0, step)
        running = iter(loader)
        assert xs([next(running)]) == [step]


def test_an_interrupt_as_a_batch_arrives_loses_no_batch(make, monkeypatch):
    """The position counts the batch only if the loop gets it."""
    loader, _ = make()

    def interrupt(epoch, step):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "reached", lambda self, epoch, step: interrupt(epoch, step))
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    assert (loader.epoch, loader.step) == (0, 0)
    assert xs(loader) == epoch_of(0)


def test_giving_up_the_position_after_an_error_is_logged(make, caplog):
    """`set_epoch` of another epoch is obeyed, and the log names both positions."""
    loader, _ = make(failing=[(0, 2)])
    with pytest.raises(DataError):
        list(loader)
    loader.set_epoch(1)
    assert not caplog.records
    assert xs(loader) == epoch_of(1)
    assert caplog.messages == [
        "a loop began at epoch 1, step 0, and so gave up the position to resume at, "
        "epoch 0, step 2; set_epoch(0) keeps it"
    ]


def test_an_error_ends_its_iterator(make):
    """A further `next` raises StopIteration, as for a generator."""
    loader, _ = make(failing=[(0, 0)])
    running = iter(loader)
    with pytest.raises(DataError):
        next(running)
    assert next(running, None) is None


def test_an_error_at_the_next_epochs_start_waits_for_that_epoch(make):
    """Fetching ahead across the end of an epoch does not fail the epoch before."""
    loader, _ = make(failing=[(1, 0)])
    assert xs(loader) == epoch_of(0)
    with pytest.raises(DataError, match="broken at 1, 0"):
        next(iter(loader))
    assert (loader.epoch, loader.step) == (1, 0)


def test_an_error_ahead_of_a_break_is_never_raised(make):
    """A batch that the loop gave up cannot fail."""
    loader, _ = make(failing=[(0, 1), (0, 2)])
    for _batch in loader:
        break
    assert xs(loader) == epoch_of(1)


def test_a_source_that_cannot_start_leaves_the_pass_to_be_tried_again(make):
    """A failed start is no loop."""
    loader, source = make()
    start, source.start = (
        source.start,
        lambda epoch, step: (_ for _ in ()).throw(IngestError("no workers")),
    )
    with pytest.raises(IngestError, match="no workers"):
        iter(loader)
    source.start = start
    assert xs(loader) == epoch_of(0)


def test_a_batch_out_of_order_is_refused(make):
    """A source that gives another step than the due one causes an error."""
    loader, source = make()
    running = iter(loader)
    next(running)
    source.at = (5, 3)
    with pytest.raises(IngestError, match=r"gave \(epoch, step\) \(5, 3\)"):
        list(running)


def test_nothing_is_fetched_past_the_declared_epochs(make):
    """With `epochs=2` the source gives two epochs and not one batch more, until the loop asks for
    it.
    """
    loader, source = make(epochs=2)
    assert loader.epochs == 2
    list(loader)
    list(loader)
    assert source.gets == [(epoch, step) for epoch in range(2) for step in range(STEPS)]
    assert xs(loader) == epoch_of(2)
    assert source.starts == [(0, 0)]


def test_running_ahead_crosses_the_end_of_an_epoch(make):
    """If more epochs follow, a device has the next epoch's first batches before it begins."""
    loader, source = make(epochs=2)
    list(loader)
    ahead = [(1, 0), (1, 1)] if make.runs_ahead else []
    assert source.gets[STEPS:] == ahead


def test_close_is_once_and_iterating_afterwards_is_an_error(make):
    """Both for a new `for` and for a running loop. Batches yielded before stay valid."""
    loader, source = make()
    with loader:
        running = iter(loader)
        batch = next(running)
    loader.close()
    assert source.closed == 1
    for iterate in (lambda: next(running), lambda: iter(loader)):
        with pytest.raises(IngestError, match="closed"):
            iterate()
    assert xs([batch]) == [0]
    assert loader.state_dict() == Plan().state(0, 1)


def test_an_exception_in_the_loop_closes_the_source(make):
    """`with` closes the loader, whatever is raised inside."""
    loader, source = make()

    def train():
        with loader:
            for _batch in loader:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert source.closed == 1


def test_a_dropped_loader_closes_its_source(make):
    """Without `close` or `with`. A running loop keeps its loader alive."""
    loader, source = make()
    running = iter(loader)
    del loader
    gc.collect()
    assert source.closed == 0
    next(running)
    del running
    gc.collect()
    assert source.closed == 1


def test_stats_merge_source_and_loop(make):
    """The loader's clock measures waits and steps; time between two passes is neither."""
    now = [0.0]
    loader, source = make(clock=lambda: now[0])

    def take_three_seconds():
        now[0] += 3

    source.on_get = take_three_seconds
    running = iter(loader)
    for _ in range(2):
        next(running)
        now[0] += 2
    now[0] += 1000
    assert loader.stats()["current_step_seconds"] == 1002
    next(iter(loader))
    stats = loader.stats()
    assert stats["current_step_seconds"] == 0
    fetched = len(source.gets)
    assert stats["read_bytes"] == 5
    assert stats["batches"] == 3
    assert stats["wait_seconds"] == 3 * fetched
    assert stats["step_seconds"] == 2
    assert stats["wait_share"] == pytest.approx(3 * fetched / (3 * fetched + 2))
    assert stats["pinned_bytes"] == 0
    assert stats["slot_bytes"] >= 0
    assert stats["slots"] >= 0


def test_stats_before_any_batch_are_zero():
    """`wait_share` is 0 and no division by zero."""
    stats = Loader(Source(), Plan()).stats()
    assert (stats["batches"], stats["wait_share"]) == (0, 0.0)


@pytest.mark.parametrize("options", [{"device": "gpu"}, {"prefetch": -1}, {"pin_memory": True}])
def test_options_that_cannot_work_close_the_source(options, monkeypatch):
    """A refused option leaves nothing running: the loader owns the source from the call on."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    source = Source()
    with pytest.raises(ConfigError, match=next(iter(options))):
        Loader(source, Plan(), **options)
    assert source.closed == 1


@pytest.mark.filterwarnings("error")
def test_batches_are_the_users_to_keep_and_to_change():
    """All batches of three epochs are kept and written to, and none of them changes afterwards."""
    pool = SlotPool()
    loader = Loader(Source(pool=pool), Plan(), slots=pool)
    kept = []
    for _ in range(3):
        for batch in loader:
            batch["__index__"] += 1
            kept.append(batch)
    assert xs(kept) == [x + 1 for number in range(3) for x in epoch_of(number)]
    assert loader.stats()["slots"] == 12


def test_the_trainer_needs_neither_ray_nor_pyarrow():
    """A new interpreter that imports the trainer loads neither."""
    code = "import sys, rayingest.trainer; print(sorted({'ray', 'pyarrow'} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
