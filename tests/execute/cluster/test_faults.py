"""Failures on Ray: each is reported once, at its step, with advice; no actor or thread is left."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray._private import internal_api
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError

import rayingest as ri
from rayingest.execute.cluster.executor import Executor
from rayingest.execute.cluster.resources import explain_no_decoder
from rayingest.execute.cluster.scans import scan_on_cluster
from rayingest.util import slow
from tests.support.streams import actors, fail_on_seven, images, joined, rows, run, write_shards


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Any, pool_of_1: ri.Pool, pool_of_3: ri.Pool, wait_until: Any) -> Any:
    """Ten seconds after each test, only the actors of the two pools run."""
    yield
    wait_until(lambda: [":index:" in name for name in actors(cluster)].count(False) == 6, 10)


def test_a_dead_decoder_and_a_dead_reader_change_nothing(
    cluster: Any, shards: str, pool_of_3: ri.Pool
) -> None:
    """Killed in the middle of an epoch, both are replaced. The stream is the same bit for bit."""
    data = images(shards, 24)
    seen = []
    with data.loader(
        pool=pool_of_3, epochs=2, max_bytes=60_000
    ) as loader:  # there is always something left to read
        for role in ("decoder", "reader"):
            for step, batch in enumerate(loader):
                seen.append(rows(batch))
                if step == 3:
                    cluster.kill(
                        next(handle.actor for handle in pool_of_3.actors if handle.role == role)
                    )
        assert loader.stats()["workers_lost"] == 2
    assert seen == run(data, epochs=2)[0]


def test_the_only_node_may_be_unreachable_for_a_moment(
    cluster: Any, shards: str, pool_of_1: ri.Pool
) -> None:
    """It is used again, because there is no other node."""
    data = images(shards, 24)
    seen = []
    with data.loader(pool=pool_of_1, epochs=1) as loader:
        for batch in loader:
            seen.append(rows(batch))
            if len(seen) == 3:
                decoder = next(handle for handle in pool_of_1.actors if handle.role == "decoder")
                pool_of_1.report_failure(decoder, ActorUnavailableError("it did not answer", None))
        assert loader.stats()["workers_lost"] == 2
    assert seen == run(data, epochs=1)[0]


class Deadly:
    """A scan whose first part kills its process this many times."""

    name, key, is_light = "index", "test-deadly", False

    def __init__(self, folder: Path, deaths: int) -> None:
        self._folder, self._deaths, self.key = folder, deaths, f"index:test-{folder.name}"

    def load(self) -> None:
        """Nothing is cached."""

    def save(self, value: int) -> None:
        """Nothing is cached."""

    def parts(self) -> list[Any]:
        """Return two parts."""
        return [self._die, lambda: 1]

    def join(self, results: Sequence[int]) -> int:
        """Return the sum of the results."""
        return sum(results)

    def _die(self) -> int:
        died = len(list(self._folder.iterdir()))
        if died < self._deaths:
            (self._folder / str(died)).touch()
            os._exit(1)
        return 1


def test_a_scan_is_run_again_if_its_process_dies(cluster: Any, tmp_path: Path) -> None:
    """Each death counts once, however late the cluster notices it."""
    folder = tmp_path / "2"
    folder.mkdir()
    assert scan_on_cluster(Deadly(folder, 2), lambda done, total: None) == 2
    folder = tmp_path / "9"
    folder.mkdir()
    with pytest.raises(ri.WorkerError, match="the index failed: its actor died 3 times"):
        scan_on_cluster(Deadly(folder, 9), lambda done, total: None)
    assert len(list(folder.iterdir())) == 3


def test_a_decoder_killed_for_memory_changes_nothing(
    cluster: Any, shards: str, pool_of_3: ri.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray reports it by an error that is no RayActorError; the test puts it in place of a kill's
    error.
    """
    data = images(shards, 24)

    class ForMemory:
        """The future of a call, whose actor was killed for memory if it died."""

        def __init__(self, future: Any) -> None:
            self.result, self._exception = future.result, future.exception

        def exception(self) -> Any:
            error = self._exception()
            dead = isinstance(error, RayActorError)
            return OutOfMemoryError("the node is low on memory") if dead else error

    for name in ("on_result", "on_output"):
        handler = getattr(Executor, name)
        monkeypatch.setattr(
            Executor,
            name,
            lambda executor, task, future, handler=handler: handler(
                executor, task, ForMemory(future)
            ),
        )
    seen = []
    with data.loader(pool=pool_of_3, epochs=2, max_bytes=60_000) as loader:
        for batch in (batch for _ in range(2) for batch in loader):
            seen.append(rows(batch))
            if len(seen) == 4:
                cluster.kill(
                    next(handle.actor for handle in pool_of_3.actors if handle.role == "decoder")
                )
        assert loader.stats()["workers_lost"] == 1
    assert seen == run(data, epochs=2)[0]


def test_a_transform_that_raises_names_sample_shard_and_line(
    shards: str, place: dict[str, Any]
) -> None:
    """The batches before it arrive; then the error takes the place of its step, as without Ray."""
    data = ri.read_webdataset(shards, block_bytes=4096).map(fail_on_seven).batch(4)
    with data.loader(**place) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ri.DataError, match="seven is not allowed") as caught:
            next(batches)
    assert caught.value.sample == 7
    assert caught.value.key == "k000007"
    assert str(caught.value.shard).endswith("s-0000.tar")
    assert "streams.py" in str(caught.value)


def not_to_be_sent(sample: dict[str, Any]) -> dict[str, Any]:
    """Give one sample a lock, which cannot be pickled."""
    i = sample["json"]["i"]
    return {"i": i, "lock": threading.Lock() if i == 7 else None}


def test_values_that_cannot_be_pickled_are_named_once(
    shards: str, cluster: Any, pool_of_1: ri.Pool
) -> None:
    """A result names field and sample, a description its stage. Nothing is retried."""
    data = ri.read_webdataset(shards)
    said = (
        r"field 'lock' is a lock, which cannot be sent.*pickle"
        r".*s-0000\.tar, offset \d+, sample 7, key k000007\]"
    )
    for on_error in ("raise", "skip"):
        with data.map(not_to_be_sent).batch(4).loader(pool=pool_of_1, on_error=on_error) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(ri.ConfigError, match=said):
                next(batches)
            assert loader.stats()["retries"] == 0
    lock = threading.Lock()
    with pytest.raises(
        ri.ConfigError, match=r"\(Map\) cannot be sent to the workers.*a class given to \.map"
    ):
        data.select(json="json").map(lambda sample: lock.locked() or sample).batch(4).loader(
            pool=pool_of_1
        )


def test_a_shard_that_changed_since_indexing_is_an_error(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    """No batch mixes the old and the new content."""
    pattern = write_shards(tmp_path, [30, 30])
    data = images(pattern, 10)
    with data.loader(**place) as loader:
        shutil.copy(tmp_path / "s-0000.tar", tmp_path / "s-0001.tar")
        with (tmp_path / "s-0001.tar").open("ab") as tar:
            tar.write(bytes(1024))
        with pytest.raises(ri.DataError, match="changed") as caught:
            list(loader)
    assert str(caught.value.shard).endswith("s-0001.tar")


def test_a_shard_replaced_by_one_of_the_same_size_is_an_error(
    tmp_path: Path, place: dict[str, Any]
) -> None:
    """Its time shows the change. A new loader makes a new index and reads the new content."""
    data = images(write_shards(tmp_path, [30, 30, 30, 30]), 10)
    old, new = tmp_path / "s-0001.tar", tmp_path / "s-0002.tar"
    assert old.stat().st_size == new.stat().st_size
    with data.loader(**place, epochs=3, max_bytes=60_000) as loader:
        list(loader)
        shutil.copy(new, old)
        with pytest.raises(ri.DataError, match="changed while it was being read") as caught:
            [list(loader) for _ in range(2)]
        assert str(caught.value.shard).endswith("s-0001.tar")
    with data.loader(**place, epochs=1) as loader:
        assert sum(len(batch["i"]) for batch in loader) == 120


def test_a_shard_that_vanished_is_an_error(tmp_path: Path, place: dict[str, Any]) -> None:
    """The error names it, and nothing hangs."""
    data = images(write_shards(tmp_path, [30, 30]), 10)
    with data.loader(**place) as loader:
        (tmp_path / "s-0000.tar").unlink()
        with pytest.raises(ri.DataError, match=r"s-0000\.tar"):
            list(loader)


def test_a_missing_cpu_is_logged_and_then_an_error(
    cluster: Any, shards: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All CPUs are taken: a log line while it waits, an error with numbers and advice after
    `start_timeout`.
    """
    monkeypatch.setattr(slow, "FIRST_SECONDS", 0.5)
    taken = cluster.util.placement_group(
        [{"CPU": 12 - sum(":decoder" in name for name in actors(cluster))}]
    )
    assert taken.wait(10)
    try:
        with (
            images(shards, 24).loader(workers=2, start_timeout=1.0) as loader,
            pytest.raises(ri.WorkerError) as caught,
        ):
            next(iter(loader))
    finally:
        cluster.util.remove_placement_group(taken)
    waits = (
        "waiting for a worker to start; 0 of 2 decoders run "
        "(the cluster has 12 CPUs, 0 of them free)"
    )
    assert waits in caplog.text
    assert "2 decoders requested" in str(caught.value)
    assert "workers=0" in str(caught.value)


def test_a_decoder_that_is_slow_to_start_lacks_no_cpu() -> None:
    """If CPUs are free, the advice is not to free some."""
    words = explain_no_decoder(1, 60.0, 4.0, 3.0)
    assert (
        "no decoder has started after 60 s: 1 decoders requested, the cluster has 4 CPUs, "
        "3 of them free; its process" in words
    )
    assert "free CPUs" not in words
    assert (
        "there is no free CPU for a decoder after 60 s: 1 decoders requested, the cluster has 4 "
        "CPUs, 0.5 of them free (3.5 by starting decoders (a longer start_timeout helps), other "
        "actors or tasks); free CPUs or add nodes" in explain_no_decoder(1, 60.0, 4.0, 0.5)
    )


def test_fewer_cpus_than_requested_are_logged(
    cluster: Any, shards: str, caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    """40 decoders on 12 CPUs: a message with both numbers, and the same stream."""
    data = images(shards, 24)
    with caplog.at_level(logging.WARNING, "rayingest"), data.loader(workers=40, epochs=1) as loader:
        assert [rows(batch) for batch in loader] == run(data)[0]
    assert "40 decoders" in caplog.text
    assert "12 CPUs" in caplog.text


def test_a_ray_client_address_is_refused(monkeypatch: pytest.MonkeyPatch, shards: str) -> None:
    """With advice, before anything is started."""
    from rayingest.execute.cluster import connection

    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ri.ConfigError, match="ray job submit"):
        images(shards, 24).loader(workers=1)


def test_bad_options_are_refused_before_anything_starts(
    cluster: Any, shards: str, tmp_path: Path
) -> None:
    """In one line that names the value and what would work."""
    data = images(shards, 24)
    before = set(actors(cluster))
    for options, words in [
        ({"rank": 0, "world_size": 5}, "uneven=True"),
        ({"rank": 3, "world_size": 3}, "ranks are 0 to"),
        ({"rank": 1}, "world_size"),
        ({"workers": -1}, "workers=-1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"device": "cuda:99"}, "cuda"),
        ({"pin_memory": True}, "pin_memory"),
    ]:
        with pytest.raises(ri.ConfigError, match=words):
            data.loader(**options)
    with pytest.raises(ri.ConfigError, match="251"):
        images(shards, 251).loader(workers=1)
    with pytest.raises(ri.ConfigError, match="nothing-here"):
        images(str(tmp_path / "nothing-here-*.tar"), 4).loader(workers=1)
    with pytest.raises(ri.ConfigError, match="batch"):
        ri.read_webdataset(shards).loader(workers=1)
    assert set(actors(cluster)) - before == {
        name for name in actors(cluster) if ":index:" in name and name not in before
    }


def test_a_state_of_other_data_is_refused(shards: str, tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """The error names all differences; the loader is unchanged."""
    other = images(write_shards(tmp_path, [60]), 12)
    with other.loader(workers=0) as loader:
        state = loader.state_dict()
    data = images(shards, 24)
    with data.loader(pool=pool_of_1) as loader:
        with pytest.raises(ri.StateError, match=r"fingerprint.*samples.*batch"):
            loader.load_state_dict(state)
        assert rows(next(iter(loader))) == run(data, steps=1)[0][0]


def stored(ray: Any) -> int:
    """Return the bytes in the node's object store."""
    node = next(node for node in ray.nodes() if node["Alive"])
    stats = internal_api.node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)
    return int(stats.store_stats.object_store_bytes_used)


def test_close_ends_all_and_is_final(cluster: Any, tmp_path: Path, wait_until: Any) -> None:
    """No actor, process, thread or stored block is left; a closed loader raises an error."""
    data = ri.read_webdataset(write_shards(tmp_path, [40] * 4, side=80), block_bytes=1 << 20)
    data = data.select(json="json", size="png").decode(size=len).batch(8)
    before, held, threads = set(actors(cluster)), stored(cluster), set(threading.enumerate())
    loader = data.loader(workers=1)
    next(iter(loader))
    made = set(actors(cluster)) - before
    assert len(made) == 2
    wait_until(lambda: stored(cluster) > held + 500_000, 10)  # blocks of 0.8 MB
    pids = cluster.get(
        [cluster.get_actor(name).__ray_call__.remote(lambda _: os.getpid()) for name in made]
    )
    assert all(map(psutil.pid_exists, pids))
    loader.close()
    loader.close()
    wait_until(lambda: set(actors(cluster)) - before == set(), 10)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), 10)
    wait_until(lambda: stored(cluster) < held + 50_000, 10)
    left = [
        thread.name
        for thread in set(threading.enumerate()) - threads
        if thread.name.startswith("rayingest")
    ]
    assert left == []
    with pytest.raises(ri.IngestError, match="closed"):
        next(iter(loader))


def test_a_loader_that_is_dropped_ends_its_actors(
    cluster: Any, shards: str, wait_until: Any
) -> None:
    """As soon as it is garbage-collected."""
    import gc

    before = set(actors(cluster))
    loader = images(shards, 24).loader(workers=1)
    next(iter(loader))
    del loader
    gc.collect()
    wait_until(lambda: set(actors(cluster)) - before == set(), 10)


def test_actor_names_have_job_rank_and_role(cluster: Any, pool_of_3: ri.Pool) -> None:
    """As the dashboard shows them."""
    job = cluster.get_runtime_context().get_job_id()
    names = [name for name in actors(cluster) if name.startswith(f"rayingest:{job}:rank1:")]
    assert sorted(name.rsplit(":", 1)[1].rstrip("0123456789") for name in names) == [
        "decoder"
    ] * 3 + ["reader"]


def test_train_and_validation_share_a_pool(cluster: Any, shards: str, pool_of_3: ri.Pool) -> None:
    """Validation passes during training, left early and whole: both streams are right, without
    further actors.
    """
    train, validation = images(shards, 24), images(shards, 20, seed=9, partial="short")
    expected, others = run(train, 2, epochs=2)[0], run(validation, 2, epochs=3)[0]
    before = set(actors(cluster))
    loaders = [train.loader(rank=r, world_size=2, pool=pool_of_3, epochs=2) for r in range(2)]
    checks = [validation.loader(rank=r, world_size=2, pool=pool_of_3, epochs=4) for r in range(2)]
    seen, seen_others = [], []
    for _ in range(2):
        for step, parts in enumerate(zip(*loaders, strict=True)):
            seen.append(joined(parts))
            if step % 5 == 3:
                for done, some in enumerate(zip(*checks, strict=False), 1):
                    seen_others.append(joined(some))
                    if len(seen) == 4 and done == 2:
                        break
    assert {name for name in actors(cluster) if ":index:" not in name} <= before
    for loader in (*loaders, *checks):
        loader.close()
    assert seen == expected
    assert seen_others[:2] == others[:2]
    assert seen_others[2:28] == others[13:39]
