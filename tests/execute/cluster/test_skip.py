"""Skipped samples: the same replacements on Ray and without it, on any ranks, with any budget."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.plan.order.manifest import Manifest
from tests.support.skipping import expected_rows
from tests.support.spoiled import (
    DEADLY,
    IN_UNREADABLE_BLOCKS,
    NO_IMAGES,
    REFUSED,
    description,
    die,
    quarantined,
    write_spoiled,
)
from tests.support.streams import Step, augment, joined, run, run_on_least, write_shards

SKIP: dict[str, Any] = {"on_error": "skip", "max_errors": 1.0}


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """250 samples, some of them bad in every way."""
    return write_spoiled(tmp_path_factory.mktemp("spoiled"))


@pytest.fixture(scope="module")
def data(spoiled: str) -> Dataset:
    """A dataset with ten steps an epoch."""
    return description(spoiled)


@pytest.fixture(scope="module")
def reference(data: Dataset) -> list[Step]:
    """Two epochs of one rank without Ray."""
    return run(data, epochs=2, **SKIP)[0]


def manifest_of(data: Dataset) -> Manifest:
    manifest = description_of(data).source.index_cache().load()
    assert manifest is not None
    return manifest


def broken_blocks(manifest: Manifest) -> set[int]:
    return set(np.searchsorted(manifest.first_ordinal, IN_UNREADABLE_BLOCKS, side="right") - 1)


def bad_ordinals(manifest: Manifest) -> set[int]:
    """Return all samples that must be replaced, for whatever reason."""
    firsts, counts = manifest.first_ordinal, manifest.samples
    unreadable = {
        int(firsts[b]) + i for b in broken_blocks(manifest) for i in range(int(counts[b]))
    }
    return NO_IMAGES | REFUSED | unreadable


def test_the_reference_has_the_replacements_of_the_plan(data: Dataset) -> None:
    """Each good sample is in its row; each bad one is replaced by its first good candidate, and
    flagged.
    """
    description = description_of(data)
    planner = description.build_planner(description.scan(0, on_ray=False), 0, 1, uneven=False)
    with data.loader(workers=0, **SKIP) as loader:
        assert len(loader) == 10
        for step, batch in enumerate(loader):
            seen = list(zip(batch["__index__"].tolist(), batch["__valid__"].tolist(), strict=True))
            assert seen == expected_rows(
                planner, step, set(NO_IMAGES | REFUSED), broken_blocks(planner.manifest)
            )
            assert batch["i"].tolist() == batch["__index__"].tolist()


def test_ray_gives_the_same_on_any_ranks_and_workers(
    data: Dataset, reference: list[Step], pool_of_1: ri.Pool, pool_of_3: ri.Pool
) -> None:
    """Two epochs: ids, flags and decoded bytes."""
    for world_size, pool in [(1, pool_of_3), (2, pool_of_1), (2, pool_of_3), (3, pool_of_3)]:
        assert run(data, world_size, epochs=2, pool=pool, **SKIP)[0] == reference


def test_every_step_can_be_resumed_with_the_same_replacements(
    data: Dataset, reference: list[Step], pool_of_3: ri.Pool
) -> None:
    """From the state before every step, on other ranks, on Ray and without it."""
    with data.loader(workers=0, **SKIP) as loader:
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    for step, state in enumerate(states):
        options: dict[str, Any] = {"pool": pool_of_3} if step % 2 else {"workers": 0}
        rest = run(
            data, 1 + step % 3, state=json.loads(json.dumps(state)), epochs=1, **options, **SKIP
        )[0]
        assert rest == reference[step : 10 if step < 10 else 20]


def test_a_tight_budget_changes_nothing(
    data: Dataset, reference: list[Step], pool_of_3: ri.Pool
) -> None:
    """The smallest that works is never exceeded."""
    seen, stats = run_on_least(data, pool_of_3, **SKIP)
    assert seen == reference[:10]
    assert stats["peak_bytes"] <= stats["max_bytes"]


def stack(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A user's collate function, which sees whole batches only."""
    return {"i": np.array([s["i"] for s in samples]), "name": [s["name"] for s in samples]}


@pytest.mark.parametrize(
    "options",
    [{"collate": stack}, {"partial": "pad", "batch": 28}, {"partial": "short", "batch": 62}],
)
def test_replacements_work_with_tails_and_collate(
    spoiled: str, pool_of_3: ri.Pool, options: dict[str, Any]
) -> None:
    """Padding repeats a bad sample's replacement; ranks without rows have an empty batch."""
    data = description(spoiled, **options)
    expected = run(data, **SKIP)[0]
    assert run(data, 2, pool=pool_of_3, **SKIP)[0] == expected


def test_the_quarantine_lists_every_bad_sample_once(
    data: Dataset, tmp_path: Path, pool_of_3: ri.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """With shard, offset, key and reason, on any ranks, on Ray and without it; one log line."""
    bad = bad_ordinals(manifest_of(data))
    lists, counts = [], []
    for name, world_size, options in [
        ("local", 1, {"workers": 0}),
        ("ray", 2, {"pool": pool_of_3}),
    ]:
        folder = tmp_path / name / "new"
        loaders = [
            data.loader(
                rank=rank, world_size=world_size, epochs=2, quarantine=folder, **options, **SKIP
            )
            for rank in range(world_size)
        ]
        for _ in range(2):
            for _ in zip(*loaders, strict=True):
                pass
        counts.append(sum(loader.stats()["samples_bad"] for loader in loaders))
        assert all(
            loader.stats()["replacements"] >= loader.stats()["samples_bad"] for loader in loaders
        )
        for loader in loaders:
            loader.close()
        lines = quarantined(folder)
        assert len(list(folder.iterdir())) == world_size
        assert len(lines) == counts[-1]
        lists.append({line["sample"]: line for line in lines})
    local, ray = lists
    assert local == ray
    assert set(local) == bad
    assert counts[0] == len(bad)
    assert local[5]["error"].startswith("decode of 'png'")
    assert (local[9]["key"], local[9]["shard"].rpartition("/")[2]) == ("k000009", "s-0000.tar")
    assert "RuntimeError: refused (in " in local[9]["error"]
    assert "corrupt tar header" in local[70]["error"]
    assert all(line["shard"] and line["offset"] is not None for line in local.values())
    assert caplog.text.count("bad samples are skipped and listed in") == 3


@pytest.mark.parametrize(
    ("max_errors", "words"),
    [(20, "2. bad samples"), (0, "3 bad samples"), (0.01, "replaced in 1. of")],
)
def test_too_many_bad_samples_end_the_run_at_the_same_step(
    data: Dataset, pool_of_3: ri.Pool, max_errors: float, words: str
) -> None:
    """By count and by share, with the figures and the last bad sample; the loader stays ended."""
    ends = []
    for options in ({"workers": 0}, {"pool": pool_of_3}):
        with data.loader(on_error="skip", max_errors=max_errors, epochs=1, **options) as loader:
            with pytest.raises(ri.DataError, match=words) as caught:
                list(loader)
            assert caught.value.sample is not None
            ends.append((loader.step, str(caught.value)))
            loader.set_epoch(3)
            with pytest.raises(ri.DataError, match=words):
                list(loader)
    assert ends[0] == ends[1]


def test_a_sample_that_ends_its_worker_is_skipped(
    spoiled: str, tmp_path: Path, pool_of_3: ri.Pool
) -> None:
    """It is found, replaced and listed like one that raises, and the stream is the same."""
    data = description(spoiled, fn=die)
    expected = run(data, **SKIP)[0]
    with data.loader(pool=pool_of_3, epochs=1, quarantine=tmp_path, **SKIP) as loader:
        assert [joined([batch]) for batch in loader] == expected
        assert 4 <= loader.stats()["workers_lost"] <= 12
    (line,) = [line for line in quarantined(tmp_path) if line["sample"] == DEADLY]
    assert "ended its worker" in line["error"]
    assert line["error"].endswith("the offset is that of its block")
    assert line["shard"].endswith("s-0004.tar")


def hang(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that never ends for one sample."""
    while sample["json"]["i"] == 21:
        time.sleep(60)
    return {"i": sample["json"]["i"]}


def test_a_sample_that_takes_too_long_is_named_and_not_skipped(
    tmp_path: Path, pool_of_3: ri.Pool
) -> None:
    """Its workers are ended; halving the task finds it, and the batches before it arrive."""
    pattern = write_shards(tmp_path, [20, 20])
    with description(pattern, 4, fn=augment).loader(workers=0, epochs=1) as loader:
        due = next(step for step, batch in enumerate(loader) if 21 in batch["__index__"])
    with description(pattern, 4, fn=hang).loader(
        pool=pool_of_3, epochs=1, decode_timeout=1.0, **SKIP
    ) as loader:
        with pytest.raises(ri.DataError, match="took longer than decode_timeout") as caught:
            list(loader)
        assert loader.step == due
    assert caught.value.sample == 21


def break_off(sample: dict[str, Any]) -> dict[str, Any]:
    """Raise what Ray takes for the end of a task, or does not expect."""
    kinds = {1: KeyboardInterrupt, 60: asyncio.CancelledError, 99: GeneratorExit}
    if sample["json"]["i"] in kinds:
        raise kinds[sample["json"]["i"]]("broken off")
    return {"i": sample["json"]["i"]}


def test_base_exceptions_are_errors_of_their_sample_on_workers(
    shards: str, tmp_path: Path, pool_of_3: ri.Pool
) -> None:
    """Also KeyboardInterrupt: Ctrl-C never reaches a worker."""
    data = ri.read_webdataset(shards).select(json="json").map(break_off).batch(50)
    with data.loader(pool=pool_of_3, epochs=1, quarantine=tmp_path, **SKIP) as loader:
        list(loader)
        assert loader.stats()["workers_lost"] == 0
    found = {line["sample"]: line["error"] for line in quarantined(tmp_path)}
    assert set(found) == {1, 60, 99}
    assert "map break_off: KeyboardInterrupt: broken off (in " in found[1]
    with (
        data.loader(pool=pool_of_3, epochs=1) as loader,
        pytest.raises(ri.DataError, match="KeyboardInterrupt") as e,
    ):
        list(loader)
    assert e.value.sample == 1


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 11 * 512])


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [cut_off, become_a_folder, become_a_pipe])
def test_a_shard_spoiled_while_it_is_read_is_skipped_as_a_whole(
    tmp_path: Path, place: dict[str, Any], spoil: Callable[[Path], None]
) -> None:
    """Samples that were read before stay; all other samples arrive, in every step."""
    pattern = write_shards(tmp_path, [30, 20, 30, 40])
    data = description(pattern, 12, fn=augment, window=48)
    with data.loader(epochs=1, **place, **SKIP) as loader:
        spoil(tmp_path / "s-0001.tar")
        valid = [
            i
            for batch in loader
            for i, v in zip(batch["__index__"].tolist(), batch["__valid__"].tolist(), strict=True)
            if v
        ]
    assert sorted(valid) == [i for i in range(120) if not 30 <= i < 50]


def test_of_files_in_folders_only_those_that_are_spoiled_are_skipped(
    tmp_path: Path, pool_of_3: ri.Pool
) -> None:
    """Truncated or missing files are listed by name; the others of their blocks arrive, on Ray and
    without it.
    """
    for i in range(60):
        (tmp_path / "data" / f"{i % 3}").mkdir(exist_ok=True, parents=True)
        (tmp_path / "data" / f"{i % 3}" / f"{i:02d}.bin").write_bytes(bytes([i]) * 100)
    data = ri.read_files(tmp_path / "data", block_bytes=1000).shuffle(seed=2, window=20).batch(10)
    with data.loader(workers=0):
        pass  # makes the index, which good data alone has
    cut, gone = tmp_path / "data" / "0" / "12.bin", tmp_path / "data" / "2" / "59.bin"
    times = {path: path.stat().st_mtime_ns for path in (cut, gone)}
    streams = []
    for name, options in (("local", {"workers": 0}), ("ray", {"pool": pool_of_3})):
        for path, time_ns in times.items():  # as the index has them
            path.write_bytes(bytes(100))
            os.utime(path, ns=(time_ns, time_ns))
        with data.loader(epochs=1, quarantine=tmp_path / name, **options, **SKIP) as loader:
            cut.write_bytes(b"cut")
            gone.unlink()
            streams.append(
                [(b["data"], b["__index__"].tolist(), b["__valid__"].tolist()) for b in loader]
            )
            assert (loader.stats()["samples_bad"], loader.stats()["replacements"]) == (2, 2)
        told = {
            line["shard"]: (line["sample"], line["error"]) for line in quarantined(tmp_path / name)
        }
        assert told == {
            str(cut): (4, "the file changed since it was indexed: it had 100 bytes then, 3 now"),
            str(gone): (59, "cannot read the file: it does not exist"),
        }
    assert streams[0] == streams[1]


def time_out(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that raises TimeoutError."""
    if sample["json"]["i"] == 99:
        try:
            raise TimeoutError("no answer")
        except TimeoutError as error:
            raise RuntimeError("the service is gone") from error
    return {"i": sample["json"]["i"]}


def mistake(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that raises ConfigError."""
    if sample["json"]["i"] == 99:
        raise ri.ConfigError("no such mode")
    return {"i": sample["json"]["i"]}


def only_the_first(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform for which hardly any sample is good."""
    if sample["json"]["i"]:
        raise ValueError("not the first")
    return {"i": sample["json"]["i"]}


def fail_to_collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A collate function that raises an error."""
    raise RuntimeError("cannot be stacked")


@pytest.mark.parametrize(
    ("fn", "collate", "error", "words"),
    [
        (time_out, None, ri.DataError, "the service is gone"),
        (mistake, None, ri.ConfigError, "no such mode"),
        (augment, fail_to_collate, ri.DataError, "cannot be stacked"),
    ],
)
def test_errors_that_are_no_samples_fault_are_never_skipped(
    shards: str, place: dict[str, Any], fn: Any, collate: Any, error: type[Exception], words: str
) -> None:
    """A time-out, an error of the description, a collate function that fails."""
    data = (
        ri.read_webdataset(shards)
        .decode(png=ri.images.RandomResizedCrop(8))
        .map(fn)
        .batch(50, collate=collate)
    )
    with data.loader(epochs=1, **place, **SKIP) as loader:
        with pytest.raises(error, match=words):
            list(loader)
        assert loader.stats()["samples_bad"] == 0


def test_data_without_a_good_sample_is_an_error(shards: str, place: dict[str, Any]) -> None:
    """The search for a replacement ends."""
    data = (
        ri.read_webdataset(shards)
        .select(json="json")
        .map(only_the_first)
        .shuffle(window=24)
        .batch(12)
    )
    with (
        data.loader(epochs=1, **place, **SKIP) as loader,
        pytest.raises(ri.DataError, match=r"no good sample of its window.* bad, .*shard.*sample"),
    ):
        list(loader)


def late(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform for which the first half is bad."""
    if sample["json"]["i"] < 125:
        raise ValueError("too early")
    return {"i": sample["json"]["i"]}


def test_the_schema_is_learned_further_on_if_the_first_samples_are_bad(
    spoiled: str, place: dict[str, Any], tmp_path: Path
) -> None:
    """The first shard may be damaged completely. Only if bad samples are skipped."""
    data = (
        ri.read_webdataset(spoiled, block_bytes=16384)
        .select(json="json")
        .map(late)
        .shuffle(seed=1)
        .batch(25)
    )
    with data.loader(epochs=1, **place, **SKIP, quarantine=tmp_path) as loader:
        taken = np.concatenate([batch["i"] for batch in loader])
    assert len(taken) == 250
    assert set(taken.tolist()) >= set(range(160, 250))
    assert taken.min() >= 125
    with (
        data.loader(epochs=1, **place) as loader,
        pytest.raises(ri.DataError, match="map late: ValueError") as error,
    ):
        list(loader)
    assert "samples" not in error.value.reason


def test_data_whose_schema_cannot_be_learned_is_an_error(
    shards: str, place: dict[str, Any]
) -> None:
    """It has the first sample's error and place, and says that the others are bad, too."""
    data = ri.read_webdataset(shards).select(json="json").map(never).batch(12)
    words = r"all \d+ samples in the first \d+ blocks are bad, .*the first is bad because: .*never"
    with (
        data.loader(epochs=1, **place, **SKIP) as loader,
        pytest.raises(ri.DataError, match=words) as error,
    ):
        list(loader)
    assert error.value.sample == 0


def never(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform for which no sample is good."""
    raise ValueError("never")


def test_bad_options_are_refused(data: Dataset, tmp_path: Path) -> None:
    """In one line that names the value and what would work."""
    (tmp_path / "file").touch()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"on_error": "ignore"}, "'raise' or 'skip'"),
        ({"max_errors": 3}, "max_errors=3 is for on_error='skip'"),
        ({"quarantine": tmp_path}, "is for on_error='skip'"),
        ({"on_error": "skip", "max_errors": -1}, "max_errors=-1"),
        ({"on_error": "skip", "max_errors": 0.0}, "max_errors=0.0"),
        ({"on_error": "skip", "max_errors": 1.5}, "max_errors=1.5"),
        ({"on_error": "skip", "max_errors": True}, "max_errors=True"),
        ({"on_error": "skip", "max_errors": "many"}, "max_errors='many'"),
        ({"on_error": "skip", "quarantine": tmp_path / "file"}, "cannot be created"),
        ({"on_error": "skip", "quarantine": "s3://bucket/bad"}, "a folder on this machine"),
    ]
    for options, words in cases:
        with pytest.raises(ri.ConfigError, match=re.escape(words)):
            data.loader(workers=0, **options)
