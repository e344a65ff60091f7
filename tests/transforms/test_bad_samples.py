"""Bad samples are left out and named; errors that are not a sample's fault are raised."""

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
from tests.support.transform_cases import arguments, block, jpeg, run_pipeline, shard, with_schema

MIXED = block(KEY=["x", "y", "z"], jpg=[jpeg(0), b"none", jpeg(2)], cls=[b"0", b"1", b"2"])


def good(stages: list[Any], *tables: pa.Table) -> tuple[Samples, dict[int, DataError]]:
    """Return the good samples of all rows, and the errors of the others by place."""
    bad: dict[int, DataError] = {}
    return Pipeline(tuple(stages), 1).run_samples(*arguments(tables), 0, bad), bad


def refuse_odd(sample: dict[str, Any]) -> dict[str, Any]:
    """A map that fails for some samples."""
    if sample["cls"] % 2:
        raise RuntimeError("odd")
    return {"cls": sample["cls"]}


def test_bad_samples_are_left_out_and_named() -> None:
    """Errors of maps and decoders name place, shard, offset, ordinal and key."""
    samples, bad = good([Map(refuse_odd)], shard(7), block(KEY=["x", "y"], cls=[b"8", b"none"]))
    assert [s["cls"] for s in samples] == [8, 10, 8]
    assert list(bad) == [0, 2, 5]
    assert [error.sample for error in bad.values()] == [100, 102, 105]
    assert (bad[0].shard, bad[0].offset, bad[0].key) == ("mem://data/a.tar", 70, "k7")
    assert "RuntimeError: odd (in " in bad[0].reason
    assert "decode of 'cls': ValueError" in bad[5].reason


class SpeechlessError(Exception):
    """An exception whose message raises."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def test_an_exception_without_a_message_is_a_bad_sample_like_any_other() -> None:
    """The error has its class's name, and the line that raised it."""

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] == 1:
            raise SpeechlessError
        return sample

    samples, bad = good([Map(refuse)], shard())
    assert (len(samples), list(bad)) == (3, [1])
    assert "refuse: SpeechlessError (its message cannot be shown) (in " in bad[1].reason
    assert bad[1].sample == 101


def test_a_line_that_is_not_json_is_one_bad_sample() -> None:
    """The other lines of its block are read."""
    samples, bad = good([], block(JSON=[b'{"a": 1}', b"{", b'{"a": 3}']))
    assert [s["a"] for s in samples] == [1, 3]
    assert list(bad) == [1]


def test_a_sample_that_lacks_a_selected_field_is_bad() -> None:
    """A field that is selected and absent is the sample's fault, whatever is beside it."""
    table = block(KEY=["x", "y"], jpg=[jpeg(0), None], cls=[b"0", b"1"])
    samples, bad = good([Select({"image": "jpg", "label": "cls"})], table)
    assert len(samples) == 1
    assert (bad[1].reason, bad[1].key) == ("field 'image' is missing", "y")
    assert good([], table)[1] == {}


def test_arrays_written_in_place_are_right_without_bad_samples() -> None:
    """The batch array has rows for all samples; collating takes those of good ones."""
    pipeline = Pipeline((Decode({"jpg": images.RandomResizedCrop(8)}),), 1)
    bad: dict[int, DataError] = {}
    samples = pipeline.run_samples(*arguments([MIXED]), 0, bad)
    columns = with_schema(pipeline, samples).finish(samples)
    alone = [run_pipeline(pipeline, MIXED, rows=[i]) for i in (0, 2)]
    assert list(bad) == [1]
    assert np.array_equal(columns["jpg"], np.concatenate([one["jpg"] for one in alone]))


def halve_in_place(columns: dict[str, Any], rng: list[np.random.Generator]) -> dict[str, Any]:
    """A batch map that changes its argument, and fails half-way."""
    for image, label in zip(columns["jpg"], columns["cls"], strict=True):
        np.floor_divide(image, 2, out=image)
        if label == 2:
            raise RuntimeError("two")
    return {"image": columns["jpg"], "noise": [r.random() for r in rng]}


def test_a_batch_map_that_fails_is_narrowed_down_to_its_rows() -> None:
    """Each row is read and run again alone, with its own random numbers."""
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
    """Samples that fail before or after it are bad as well."""
    stages = [MapBatches(lambda columns: {"cls": columns["cls"]}), Map(refuse_odd)]
    samples, bad = good(stages, shard(4, 3))
    assert [s["cls"] for s in samples] == [4, 6]
    assert list(bad) == [1]
    assert good(stages, MIXED)[1].keys() == {1}


class ReadTimeout(OSError):
    """A library's own class of time-out."""


def from_time_out() -> None:
    """A user's error that a time-out caused."""
    try:
        raise ReadTimeout("no answer")
    except ReadTimeout as error:
        raise ValueError("no label") from error


def because_of(error: BaseException) -> None:
    """Raise an error of this class."""
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
def test_transient_failures_are_raised(fail: Any, together: bool) -> None:
    """Time-outs, broken connections and short memory are raised, whichever class reports them."""

    def work(values: dict[str, Any]) -> dict[str, Any]:
        fail()
        return values

    with pytest.raises(DataError) as caught:
        good([(MapBatches if together else Map)(work)], shard())
    assert caught.value.transient
    assert pickle.loads(pickle.dumps(caught.value)).transient


@pytest.mark.parametrize("error", [ConfigError("no"), KeyboardInterrupt()])
def test_mistakes_and_interrupts_are_raised(error: BaseException) -> None:
    """ConfigErrors and interrupts are not a sample's fault."""
    with pytest.raises(type(error)):
        good([Map(lambda sample: because_of(error))], shard())


def test_a_truncated_image_is_a_bad_sample() -> None:
    """Pillow raises OSError, which is no transient failure here."""
    _, bad = good([], block(KEY=["a"], jpg=[jpeg(0)[:-40]]))
    assert not bad[0].transient
