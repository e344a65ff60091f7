"""A loader as a data set of batches and a sampler of steps, for frameworks that skip batches."""

from itertools import islice

import pytest
from torch.utils.data import DataLoader, SequentialSampler

from rayingest.errors import DataError
from tests.trainer.fake_source import STEPS, Plan, epoch_of, xs


class Skipping:
    """A batch sampler without its first indices, as `skip_first_batches` makes one."""

    def __init__(self, sampler, count):
        self.sampler, self.count = sampler, count

    def __iter__(self):
        return islice(self.sampler, self.count, None)

    def __len__(self):
        return len(self.sampler) - self.count


def without_first(loader, count):
    """Return a DataLoader of the loader's parts that leaves out the first batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=Skipping(loader.batch_sampler, count),
        collate_fn=loader.collate_fn,
        prefetch_factor=loader.prefetch_factor,
    )


@pytest.mark.parametrize("count", range(STEPS + 1))
def test_skipped_batches_are_not_read(make, count):
    """The rest of the epoch comes, the loader's position follows, and the next loop is the next
    epoch.
    """
    loader, source = make()
    rest = without_first(loader, count)
    assert len(rest) == STEPS - count
    for at, batch in enumerate(rest, count + 1):
        assert xs([batch]) == [at - 1]
        assert (loader.epoch, loader.step) == ((0, at) if at < STEPS else (1, 0))
    assert source.starts == [(0, count)][: STEPS - count]
    assert xs(loader) == epoch_of(1)
    assert xs(without_first(loader, 1)) == epoch_of(2, 1)


def test_the_count_begins_at_the_epochs_start(make):
    """Also where a state within the epoch was loaded: to load and to skip is to skip once."""
    loader, source = make()
    loader.load_state_dict(Plan().state(2, 3))
    rest = without_first(loader, 3)
    rest.batch_sampler.sampler.set_epoch(2)
    assert xs(rest) == epoch_of(2, 3)
    assert source.starts == [(2, 3)]


def test_the_epoch_may_be_set_at_the_sampler(make):
    """Frameworks set the epoch of what the DataLoader holds, after they have wrapped it."""
    loader, _ = make()
    rest = without_first(loader, 2)
    rest.batch_sampler.sampler.set_epoch(5)
    assert xs(rest) == epoch_of(5, 2)
    assert xs(loader) == epoch_of(6)


def test_an_error_leaves_the_position(make):
    """The loop ends, and the next one tries the batch again."""
    loader, source = make(failing=[(0, 2)])
    with pytest.raises(DataError):
        list(without_first(loader, 1))
    assert (loader.epoch, loader.step) == (0, 2)
    source.failing.clear()
    assert xs(without_first(loader, 2)) == epoch_of(0, 2)


def test_a_loader_seems_to_be_in_order(make):
    """Lightning replaces samplers that it does not know as ordered, for example to overfit."""
    loader, _ = make()
    assert isinstance(loader.sampler, SequentialSampler)
    assert list(loader.sampler) == list(range(STEPS))
