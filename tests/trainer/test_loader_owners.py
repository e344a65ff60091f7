"""Who may use a loader: threads of the process that made it, and no other process."""

import copy
import os
import pickle
import threading

import pytest
import torch

from rayingest.errors import IngestError
from tests.trainer.fake_source import epoch_of, xs


def in_threads(count, work):
    """Run `work` in threads; return the results and errors, once all have ended."""
    results, errors = [], []

    def run():
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results, errors


def test_threads_share_an_iterator(make):
    """Each batch goes to one thread, one thread at a time is in the source, and all threads end."""
    loader, source = make()
    meeting = threading.Barrier(2)
    met = []

    def wait_for_another_thread():
        source.on_get = lambda: None
        try:
            meeting.wait(0.2)
        except threading.BrokenBarrierError:
            return
        met.append(True)

    for epoch in range(3):
        source.on_get = wait_for_another_thread
        meeting.reset()
        running = iter(loader)
        received, errors = in_threads(4, lambda shared=running: xs(shared))
        assert not errors
        assert sorted(x for part in received for x in part) == epoch_of(epoch)
        assert (loader.epoch, loader.step) == (epoch + 1, 0)
    assert not met


def test_an_error_reaches_one_of_the_threads_that_share_an_iterator(make):
    """The others end, and the next loop goes on at the state."""
    loader, source = make(failing=[(0, 2)])
    running = iter(loader)
    received, errors = in_threads(4, lambda: [xs([batch]) for batch in running])
    assert [str(error) for error in errors] == ["broken at 0, 2 [shard s.tar]"]
    assert sum(map(len, received)) <= 2
    source.failing.clear()
    assert xs(loader) == epoch_of(0, 2)


def in_fork(work):
    """Return the text of the error that `work` raises in a forked process; "" for none."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(read)
            text = ""
            try:
                work()
            except IngestError as error:
                text = str(error)
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    "use",
    [lambda loader, running: iter(loader), lambda loader, running: next(running)],
    ids=["for", "next"],
)
def test_a_fork_cannot_use_the_loader_of_its_parent(make, use):
    """It would repeat the data of its parent. The error says so, and the parent goes on."""
    loader, source = make()
    running = iter(loader)
    next(running)
    with loader._lock:  # as another thread may hold it
        text = in_fork(lambda: use(loader, running))
    assert text.startswith(
        "a forked process cannot use the loader of its parent: made in process "
        f"{os.getpid()}, used in process "
    )
    assert "make a loader in each process, with its rank and world_size" in text
    assert xs(running) == epoch_of(0, 1)
    assert source.starts == [(0, 0)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_dataloader_with_workers_around_a_loader_is_refused(make):
    """Each of its workers would yield all batches. Without workers it yields the loader's."""

    class Batches(torch.utils.data.IterableDataset):
        def __init__(self, loader):
            self.loader = loader

        def __iter__(self):
            try:
                yield from self.loader
            except IngestError as error:  # a worker that raises takes 5 s to end
                yield str(error)

    loader, _ = make()
    errors = list(torch.utils.data.DataLoader(Batches(loader), batch_size=None, num_workers=2))
    assert len(errors) == 2
    assert all("A loader needs no DataLoader around it" in error for error in errors)
    assert xs(torch.utils.data.DataLoader(Batches(loader), batch_size=None)) == epoch_of(0)


@pytest.mark.parametrize(
    "copied", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
def test_a_loader_does_not_pickle(make, copied):
    """The error says what to do instead."""
    loader, _ = make()
    with pytest.raises(TypeError, match="pickled or copied: its process owns it; make a loader"):
        copied(loader)
