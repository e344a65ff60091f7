"""Samples left out where they are at fault: which, what is said of each, and what is nobody's fault but raised."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.run_stages import Samples
from rayingest.transforms.stages import Decode, Map, MapBatches, Select
from tests.support.transform_cases import arguments, block, jpeg, learnt, run_pipeline, shard

MIXED = block(KEY=["x", "y", "z"], jpg=[jpeg(0), b"none", jpeg(2)], cls=[b"0", b"1", b"2"])


def good(stages: list[Any], *tables: pa.Table) -> tuple[Samples, dict[int, DataError]]:
    """The samples of all rows that can be had, and what is wrong with the others."""
    bad: dict[int, DataError] = {}
    return Pipeline(tuple(stages), 1).run_samples(*arguments(tables), 0, bad), bad


def refuse_odd(sample: dict[str, Any]) -> dict[str, Any]:
    """Some are at fault."""
    if sample["cls"] % 2:
        raise RuntimeError("odd")
    return {"cls": sample["cls"]}


def test_bad_samples_are_left_out_and_named() -> None:
    """By their place, with shard, offset, ordinal and key; a map's failures and a decoder's."""
    samples, bad = good([Map(refuse_odd)], shard(7), block(KEY=["x", "y"], cls=[b"8", b"none"]))
    assert [s["cls"] for s in samples] == [8, 10, 8]
    assert list(bad) == [0, 2, 5]
    assert [error.sample for error in bad.values()] == [100, 102, 105]
    assert (bad[0].shard, bad[0].offset, bad[0].key) == ("mem://data/a.tar", 70, "k7")
    assert "RuntimeError: odd (in " in bad[0].reason
    assert "decode of 'cls': ValueError" in bad[5].reason


class SpeechlessError(Exception):
    """One that raises when it is asked what happened."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def test_an_exception_without_a_message_is_a_bad_sample_like_any_other() -> None:
    """Told by its type's name, and where it was raised."""

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] == 1:
            raise SpeechlessError
        return sample

    samples, bad = good([Map(refuse)], shard())
    assert (len(samples), list(bad)) == (3, [1])
    assert "refuse: SpeechlessError (its message cannot be shown) (in " in bad[1].reason
    assert bad[1].sample == 101


def test_a_line_that_is_no_json_is_one_bad_sample() -> None:
    """The rest of its block is as it was."""
    samples, bad = good([], block(JSON=[b'{"a": 1}', b"{", b'{"a": 3}']))
    assert [s["a"] for s in samples] == [1, 3]
    assert list(bad) == [1]


def test_a_sample_that_lacks_a_selected_field_is_bad() -> None:
    """It would be in any company; what only differs from the others is not told here."""
    table = block(KEY=["x", "y"], jpg=[jpeg(0), None], cls=[b"0", b"1"])
    samples, bad = good([Select({"image": "jpg", "label": "cls"})], table)
    assert len(samples) == 1
    assert (bad[1].reason, bad[1].key) == ("field 'image' is missing", "y")
    assert good([], table)[1] == {}


def test_what_is_written_in_place_is_right_without_the_bad_ones() -> None:
    """The batch's array has rows for all; only those of good samples are taken."""
    pipeline = Pipeline((Decode({"jpg": images.RandomResizedCrop(8)}),), 1)
    bad: dict[int, DataError] = {}
    samples = pipeline.run_samples(*arguments([MIXED]), 0, bad)
    columns = learnt(pipeline, samples).finish(samples)
    alone = [run_pipeline(pipeline, MIXED, rows=[i]) for i in (0, 2)]
    assert list(bad) == [1]
    assert np.array_equal(columns["jpg"], np.concatenate([one["jpg"] for one in alone]))


def halve_in_place(columns: dict[str, Any], rng: list[np.random.Generator]) -> dict[str, Any]:
    """A batch map that changes what it is given, and fails half-way."""
    for image, label in zip(columns["jpg"], columns["cls"], strict=True):
        np.floor_divide(image, 2, out=image)
        if label == 2:
            raise RuntimeError("two")
    return {"image": columns["jpg"], "noise": [r.random() for r in rng]}


def test_a_batch_map_that_fails_is_narrowed_down_to_its_rows() -> None:
    """Rows are judged one by one, from their undecoded bytes, with the random numbers that they always have."""
    table = shard(0, 4)
    stages = [Decode({"jpg": images.RandomResizedCrop(8)}), MapBatches(halve_in_place)]
    samples, bad = good(stages, table)
    pipeline = Pipeline(tuple(stages), 1)
    alone = [pipeline.run_samples(*arguments([table], [i]), 0)[0] for i in (0, 1, 3)]
    assert [s["noise"] for s in samples] == [s["noise"] for s in alone]
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(samples, alone, strict=True))
    assert list(bad) == [2]
    assert (bad[2].sample, bad[2].key) == (102, "k2")
    assert "map_batches halve_in_place: RuntimeError: two" in bad[2].reason


def test_a_batch_map_after_bad_samples_sees_the_good_ones() -> None:
    """Stages before and after it are part of the judgement."""
    stages = [MapBatches(lambda columns: {"cls": columns["cls"]}), Map(refuse_odd)]
    samples, bad = good(stages, shard(4, 3))
    assert [s["cls"] for s in samples] == [4, 6]
    assert list(bad) == [1]
    assert good(stages, MIXED)[1].keys() == {1}


class ReadTimeout(OSError):
    """A library's own class for time that ran out."""


def from_time_out() -> None:
    """An error of the user's own, about a time-out."""
    try:
        raise ReadTimeout("no answer")
    except ReadTimeout as error:
        raise ValueError("no label") from error


def because_of(error: BaseException) -> None:
    """It is raised."""
    raise error


@pytest.mark.parametrize(
    "fail",
    [
        lambda: because_of(TimeoutError()),
        lambda: because_of(ConnectionResetError()),
        lambda: because_of(ReadTimeout()),
        lambda: because_of(MemoryError()),
        lambda: because_of(DataError("mine", transient=True)),
        from_time_out,
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_may_pass_is_raised_and_nobody_is_blamed(fail: Any, together: bool) -> None:
    """Time-outs, connections, memory: by any class of that name, also behind another error."""

    def work(values: dict[str, Any]) -> dict[str, Any]:
        fail()
        return values

    with pytest.raises(DataError) as caught:
        good([(MapBatches if together else Map)(work)], shard())
    assert caught.value.transient
    assert pickle.loads(pickle.dumps(caught.value)).transient


@pytest.mark.parametrize("error", [ConfigError("no"), KeyboardInterrupt()])
def test_mistakes_and_interrupts_are_raised(error: BaseException) -> None:
    """They are not a sample's fault."""
    with pytest.raises(type(error)):
        good([Map(lambda sample: because_of(error))], shard())


def test_an_image_cut_short_is_the_samples_fault() -> None:
    """Though Pillow says so by an OSError."""
    _, bad = good([], block(KEY=["a"], jpg=[jpeg(0)[:-40]]))
    assert not bad[0].transient
