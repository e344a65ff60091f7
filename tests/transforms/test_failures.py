"""Errors name the sample, the shard and the user's own line."""

from __future__ import annotations

import asyncio
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import images
from rayingest.transforms.functions import failure
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, MapBatches, Select
from tests.support.transform_cases import block, jpeg, run, shard


def test_an_exception_names_sample_shard_and_the_users_line():
    """It is the innermost line of the user's code; the cause is the original exception."""

    def helper(value):
        return json.loads(value)  # the line to name

    def broken(sample):
        return {"x": helper("{") if sample["cls"] == 2 else 0}

    with pytest.raises(DataError) as caught:
        run([Map(broken)], shard(7, n=1), shard())
    error = pickle.loads(pickle.dumps(caught.value))
    line = next(
        i
        for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# the line to name")
    )
    assert (error.shard, error.offset, error.sample, error.key) == (
        "mem://data/a.tar",
        20,
        103,
        "k2",
    )
    assert (
        "map test_an_exception_names_sample_shard_and_the_users_line.<locals>.broken: "
        "JSONDecodeError: " in str(error)
    )
    assert f"(in {__file__}:{line}, helper)" in str(error)
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_decoder_errors_name_the_field():
    """Errors of built-in decoders and of the user's name the field."""
    cut = block(KEY=["a"], jpg=[jpeg(0)[:-40]])
    with pytest.raises(
        DataError,
        match=r"^decode of 'jpg': OSError: .*truncated.*"
        r"\[shard mem://data/a.tar, offset 0, sample 100, key a\]$",
    ) as caught:
        run([], cut)
    assert "(in " not in str(caught.value)
    with pytest.raises(DataError, match=r"decode of 'image': OSError"):
        run([Select({"image": "jpg"}), Decode({"image": images.Resize(8)})], cut)
    with pytest.raises(DataError, match=r"decode of 'cls': ValueError: invalid literal"):
        run([], block(KEY=["a"], cls=[b"one"]))
    with pytest.raises(DataError, match=r"decode of 'jpg': not an image .*\[shard"):
        run([], block(KEY=["a"], jpg=[b"nothing"]))
    with pytest.raises(DataError, match=r"decode of 'txt.gz': gzip data is cut short"):
        run([], block(KEY=["a"], **{"txt.gz": [b"\x1f\x8b"]}))
    with pytest.raises(
        DataError, match=r"decode of 'cls': ZeroDivisionError: .*test_\w+.py:\d+, <lambda>"
    ):
        run([Decode({"cls": lambda value: 1 / 0})], shard())


def test_errors_of_batches_name_the_shard_and_no_sample():
    """A batch map's error names no sample: its row is unknown."""
    with pytest.raises(
        DataError, match=r"map_batches .*: KeyError: 'z' \(in .*test_\w+.py:\d+, <lambda>\)"
    ) as caught:
        run([MapBatches(lambda columns: columns["z"])], shard())
    assert (caught.value.shard, caught.value.sample) == ("mem://data/a.tar", None)


def test_data_errors_of_the_users_own_are_kept():
    """A DataError raised by the user keeps its reason and gets the place it lacks."""

    def refuse(sample):
        raise DataError("too dark", key="mine")

    with pytest.raises(DataError, match="too dark") as caught:
        run([Map(refuse)], shard())
    assert (caught.value.sample, caught.value.key) == (100, "mine")
    assert caught.value.reason.endswith("refuse: too dark")


@pytest.mark.parametrize("kind", [ValueError, DataError])
def test_long_messages_are_shortened(kind):
    """Long messages are shortened once, however often they are passed on."""

    def refuse(sample):
        raise kind("cannot parse " + "0a" * 2_500_000)

    for stage in (Map(refuse), MapBatches(refuse), Decode({"cls": refuse})):
        with pytest.raises(DataError, match="cannot parse 0a0a") as caught:
            run([stage], shard())
        assert len(str(caught.value)) < 2500
        assert "... (4,998,013 characters more)" in str(caught.value)
        assert str(failure("told on", caught.value, None)).count("characters more") == 1


def test_an_exception_may_be_its_own_cause():
    """A ring of causes is walked once."""
    own, cause, context = ValueError("a"), KeyError("b"), OSError("c")
    own.__cause__ = own
    cause.__cause__, context.__context__ = context, cause
    for error in (own, cause, context):
        assert not failure("map f", error, None).transient
    context.__cause__ = TimeoutError("d")
    assert failure("map f", cause, None).transient


class Odd(BaseException):
    """A BaseException that is not an Exception."""


def stages_that(leave):
    """Return the stages in which the user's function raises."""
    return [Map(leave), MapBatches(leave), Decode({"cls": leave})]


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError, Odd])
def test_any_exception_of_a_function_is_the_samples(kind):
    """Any BaseException becomes a DataError: otherwise a worker would end."""

    def leave(values):
        raise kind("no")

    for stage in stages_that(leave):
        with pytest.raises(DataError, match=f"{kind.__name__}: no"):
            run([stage], shard())
    with pytest.raises(DataError, match=f"collate .*leave: {kind.__name__}: no"):
        Pipeline((), 0, collate=leave).finish([{"a": 1}])


def test_interrupts_pass():
    """The main thread's KeyboardInterrupt passes; another thread's is a function's error."""

    def interrupted(values):
        raise KeyboardInterrupt("no")

    for stage in stages_that(interrupted):
        with pytest.raises(KeyboardInterrupt):
            run([stage], shard())
        with ThreadPoolExecutor(1) as pool, pytest.raises(DataError, match="KeyboardInterrupt: no"):
            pool.submit(run, [stage], shard()).result()


@pytest.mark.parametrize("result", [None, 3, [1]])
def test_maps_must_return_a_dict(result):
    """The error says that the map returned no dict, and names the sample."""
    with pytest.raises(
        DataError, match=f"returned {type(result).__name__}, not a dict of fields"
    ) as caught:
        run([Map(lambda sample: result)], shard())
    assert caught.value.sample == 100


class NeedsArgument:
    def __init__(self, size):
        self.size = size

    def __call__(self, sample):
        return sample


class NotCallable:
    pass


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Map(3), "3 cannot be called"),
        (lambda: Map(lambda: 0), "needs nothing"),
        (lambda: Map(lambda a, b, c: 0), "needs a, b, c"),
        (lambda: Map(lambda a, b, rng: 0), "needs a, b, rng"),
        (lambda: Map(lambda rng: 0), "needs rng"),
        (lambda: MapBatches(lambda a, *, size: 0), "needs a, size"),
        (lambda: Map(NeedsArgument), "needs size to be set up"),
        (lambda: Map(NotCallable), "__call__"),
        (lambda: Decode({"jpg": 3}), "decode of 'jpg': 3 cannot be called"),
        (lambda: Decode({"jpg": lambda a, b, c: 0}), "decode of 'jpg'.*needs a, b, c"),
        (
            lambda: Decode({"jpg": images.Resize}),
            r"decode of .jpg.: Resize is a class; give an inst",
        ),
        (lambda: Decode({}), "decode: no field is named; give fields and their decoders"),
        (lambda: Select({}), "select: expected new names"),
        (lambda: Select({"a": 3}), r"select: expected .* not {'a': 3}"),
        (lambda: Pipeline((len,), 0), "a stage is"),
        (lambda: Pipeline((), 0, collate=3), "collate=3 cannot be called"),
    ],
)
def test_wrong_stages_are_refused_when_they_are_described(build, said):
    """ConfigError is raised before anything runs."""
    with pytest.raises(ConfigError, match=said):
        build()
