"""A loader's passes and its position, over a source that records its calls."""

import io
import json

import pytest
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from rayingest.errors import ConfigError, StateError
from rayingest.trainer import Loader
from tests.trainer.fake_source import STEPS, Plan, Source, epoch_of, xs


def test_passes_follow_each_other_without_a_restart(make):
    """Each `for` is one epoch. The source starts once, as long as it is at the right position."""
    loader, source = make()
    assert [xs(loader) for _ in range(4)] == [epoch_of(number) for number in range(4)]
    assert source.starts == [(0, 0)]
    assert len(loader) == STEPS
    assert (loader.rank, loader.world_size) == (1, 3)


def test_progress_bars_know_the_length_of_an_epoch(make):
    """Each loop has a bar of tqdm and of rich with its own length, full at the end."""
    loader, _ = make()
    output = io.StringIO()
    assert xs(tqdm(loader, file=output, mininterval=0, ascii=True)) == epoch_of(0)
    assert f"{STEPS}/{STEPS}" in output.getvalue()
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(console=console) as progress:
        assert xs(progress.track(loader)) == epoch_of(1)
        (task,) = progress.tasks
    assert (task.total, task.finished) == (STEPS, True)


@pytest.mark.parametrize("step", range(STEPS))
def test_a_progress_bar_of_a_resumed_pass_begins_at_its_step(make, step):
    """The way that docs/resuming.md names: full at the end, also in the passes that follow."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(1, step))
    for epoch, begin in ((1, step), (2, 0)):
        output = io.StringIO()
        passing = iter(loader)
        bar = tqdm(
            passing, initial=loader.step, total=len(loader), file=output, mininterval=0, ascii=True
        )
        assert bar.n == begin
        assert xs(bar) == epoch_of(epoch, begin)
        assert f"{STEPS}/{STEPS}" in output.getvalue()


def test_position_counts_the_batch_in_hand(make):
    """Inside the loop body, `step` includes this batch.

    With the last batch, the position is the start of the next epoch.
    """
    loader, _ = make()
    assert (loader.epoch, loader.step) == (0, 0)
    seen = []
    for _ in range(2):
        for _batch in loader:
            seen.append((loader.epoch, loader.step))
            assert loader.state_dict() == Plan().state(*seen[-1])
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_break_gives_up_the_rest_of_the_epoch(make):
    """After any batch but the last, the source starts at the next epoch.

    After the last, it need not.
    """
    for steps in range(1, STEPS + 1):
        loader, source = make()
        for count, _batch in enumerate(loader, 1):
            if count == steps:
                break
        assert (loader.epoch, loader.step) == ((0, steps) if steps < STEPS else (1, 0))
        assert xs(loader) == epoch_of(1)
        assert source.starts == ([(0, 0), (1, 0)] if steps < STEPS else [(0, 0)])


def test_resume_at_every_step(make):
    """The state at each step, as JSON, resumes the rest of the epoch and then whole epochs."""
    loader, _ = make()
    states, stream = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            stream += xs([batch])
            states.append(json.loads(json.dumps(loader.state_dict())))
    for count, state in enumerate(states):
        resumed, source = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        epoch, step = divmod(count, STEPS)
        assert xs(resumed) == epoch_of(epoch, step)
        assert xs(resumed) == epoch_of(epoch + 1)
        assert source.starts == [(epoch, step)]


def test_leaving_a_resumed_pass_gives_up_the_rest_too(make):
    """Only the first loop after a load finishes the interrupted epoch."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(3, 1))
    for batch in loader:
        assert xs([batch]) == [301]
        break
    assert xs(loader) == epoch_of(4)


def test_a_state_at_the_end_of_an_epoch_is_the_next_ones_start(make):
    """After all steps, the state is epoch + 1, step 0, and the next epoch is whole."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(2, STEPS))
    assert (loader.epoch, loader.step) == (3, 0)
    assert xs(loader) == epoch_of(3)


def test_the_last_load_wins(make):
    """Of two loads in a row, the second one counts."""
    loader, source = make()
    loader.load_state_dict(Plan().state(1, 1))
    loader.load_state_dict(Plan().state(5, 2))
    assert xs(loader) == epoch_of(5, 2)
    assert source.starts == [(5, 2)]


def test_a_load_ends_the_running_pass(make):
    """The old iterator says why it has ended; the next `for` continues from the state."""
    loader, _ = make()
    running = iter(loader)
    next(running)
    loader.load_state_dict(Plan().state(6, 3))
    with pytest.raises(RuntimeError, match="load_state_dict was called"):
        next(running)
    assert xs(loader) == epoch_of(6, 3)


def test_loading_where_the_source_stands_does_not_restart_it(make):
    """Loading the state of the current position does not start the source again."""
    loader, source = make()
    for _batch in loader:
        break
    loader.load_state_dict(loader.state_dict())
    assert xs(loader) == epoch_of(0, 1)
    assert source.starts == [(0, 0)]


def test_a_refused_state_changes_nothing(make):
    """The plan's error is raised; position and running loop stay."""
    loader, _ = make()
    running = iter(loader)
    next(running)
    with pytest.raises(StateError, match="d2"):
        loader.load_state_dict(Plan(data="d2").state(1, 1))
    assert (loader.epoch, loader.step) == (0, 1)
    assert xs(running) == epoch_of(0, 1)


def test_set_epoch_chooses_the_next_epoch(make):
    """The next loop begins at the start of that epoch, and later epochs follow it."""
    loader, _ = make()
    for _batch in loader:
        break
    loader.set_epoch(7)
    assert (loader.epoch, loader.step) == (7, 0)
    assert xs(loader) == epoch_of(7)
    assert xs(loader) == epoch_of(8)
    for _batch in loader:
        break
    loader.set_epoch(9)
    assert xs(loader) == epoch_of(9)


@pytest.mark.parametrize("loaded", [(0, 0), (0, 2), (2, 1), (2, 3), (3, 0)])
def test_set_epoch_keeps_a_loaded_position(make, loaded):
    """`set_epoch` of the loaded epoch keeps the step, however often it is called, also behind calls
    for other epochs: a loop that passes over the epochs before it calls `set_epoch` for them too.
    """
    epoch, step = loaded
    for calls in ([epoch], [epoch, epoch], [*range(epoch + 1)], [epoch + 1, epoch]):
        loader, source = make()
        loader.load_state_dict(Plan().state(*loaded))
        for number in calls:
            loader.set_epoch(number)
        assert (loader.epoch, loader.step) == loaded
        assert xs(loader) == epoch_of(epoch, step)
        for number in (epoch + 1, epoch + 2):
            loader.set_epoch(number)
            assert xs(loader) == epoch_of(number)
        assert source.starts == [loaded]


def test_set_epoch_keeps_a_loaded_position_once(make):
    """After the first batch from there, `set_epoch` is the start of its epoch, as ever."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(2, 2))
    next(iter(loader))
    loader.set_epoch(2)
    assert xs(loader) == epoch_of(2)


def test_set_epoch_does_not_end_an_iterator_that_begins_there(make):
    """Frameworks create the iterator of a loop before or after they call `set_epoch`."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(2, 2))
    early = iter(loader)
    loader.set_epoch(2)
    assert xs(early) == epoch_of(2, 2)


def test_giving_up_a_loaded_position_is_logged(make, caplog):
    """Another epoch is obeyed. The log names both positions once a batch has come."""
    loader, _ = make()
    loader.load_state_dict(Plan().state(2, 1))
    loader.set_epoch(0)
    running = iter(loader)
    assert not caplog.records
    assert xs(running) == epoch_of(0)
    assert caplog.messages == [
        "a loop began at epoch 0, step 0, and so gave up the position to resume at, "
        "epoch 2, step 1; set_epoch(2) keeps it"
    ]
    assert xs(loader) == epoch_of(1)
    assert len(caplog.records) == 1


def test_set_epoch_to_where_it_is_costs_nothing(make):
    """`set_epoch(e)` before every loop, as distributed samplers need it, restarts nothing."""
    loader, source = make()
    for number in range(3):
        loader.set_epoch(number)
        assert xs(loader) == epoch_of(number)
    assert source.starts == [(0, 0)]


@pytest.mark.parametrize("epoch", [-1, 1.5, "3", None])
def test_values_that_are_no_epoch_are_refused(epoch):
    """The error names the value."""
    loader = Loader(Source(), Plan())
    with pytest.raises(ConfigError, match=f"epoch={epoch!r}"):
        loader.set_epoch(epoch)


def test_a_newer_iterator_ends_the_older(make):
    """The older one raises an error; the newer one is the next epoch."""
    loader, _ = make()
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(RuntimeError, match="newer iterator"):
        next(older)
    assert xs(newer) == epoch_of(1)
    assert next(newer, None) is None
    assert next(newer, None) is None


def test_a_pass_that_gave_its_last_batch_is_exhausted_for_good(make):
    """Its iterator stays exhausted, also after a newer loop has begun."""
    loader, _ = make()
    older = iter(loader)
    for _ in range(STEPS):
        next(older)
    newer = iter(loader)
    next(newer)
    assert next(older, None) is None
    assert xs(newer) == epoch_of(1, 1)


@pytest.mark.parametrize("steps", [0, 1, STEPS])
def test_zipped_loaders_stay_together(make, steps):
    """`zip` stops one call before the end of all loaders but the first, and creates iterators that
    it may never use.
    """
    loaders = [make(steps)[0] for _ in range(3)]
    for number in range(3):
        rows = list(zip(*[iter(loader) for loader in loaders], strict=False))
        assert [xs(row) for row in rows] == [[x] * 3 for x in epoch_of(number, steps=steps)]
        assert {(loader.epoch, loader.step) for loader in loaders} == {(number + 1, 0)}


def test_an_unused_iterator_is_no_pass(make):
    """The next iterator begins at the same position without restarting the source.

    An iterator that was used once is a loop.
    """
    loader, source = make()
    loader.load_state_dict(Plan().state(2, 3))
    idle = iter(loader)
    assert (loader.epoch, loader.step) == (2, 3)
    assert xs(loader) == epoch_of(2, 3)
    assert source.starts == [(2, 3)]
    with pytest.raises(RuntimeError, match="newer iterator"):
        next(idle)
    next(iter(loader))
    assert xs(loader) == epoch_of(4)


def test_an_epoch_without_steps_passes(make):
    """It yields nothing and reads nothing, and the next epoch follows."""
    loader, source = make(steps=0)
    assert [xs(loader), xs(loader)] == [[], []]
    assert (loader.epoch, loader.step) == (2, 0)
    assert (source.starts, source.gets) == ([], [])
    loader.load_state_dict(Plan().state(0, 0))
    assert loader.epoch == 0
