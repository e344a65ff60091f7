"""Errors keep their type, their text and their attributes between processes."""

from __future__ import annotations

import pickle

import pytest

from rayingest import errors
from rayingest.build.compatibility import Feature, refusal

PLAIN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.IngestError)
]


@pytest.mark.parametrize("kind", PLAIN)
def test_an_error_survives_pickling(kind: type[errors.IngestError]) -> None:
    """Type and text stay."""
    error = pickle.loads(pickle.dumps(kind("it broke")))
    assert (type(error), str(error)) == (kind, "it broke")


@pytest.mark.parametrize("kind", [errors.DataError, errors.DeadlySampleError])
def test_the_place_of_bad_data_survives_pickling(kind: type[errors.DataError]) -> None:
    """Shard, offset, sample and key are attributes, and stand in the text."""
    place = {"shard": "a.tar", "offset": 512, "sample": 7, "key": "x"}
    error = pickle.loads(pickle.dumps(kind("it broke", **place, transient=True)))
    assert {name: getattr(error, name) for name in place} == place
    assert (error.reason, error.transient) == ("it broke", True)
    assert str(error) == "it broke [shard a.tar, offset 512, sample 7, key x]"


def test_another_reason_keeps_the_place() -> None:
    """Type, place and `transient` stay."""
    error = errors.DeadlySampleError("it broke", shard="a", sample=0, transient=True)
    other = error.with_reason("it ended its worker")
    assert (type(other), str(other)) == (type(error), "it ended its worker [shard a, sample 0]")
    assert other.transient


def test_a_refused_verb_is_both_errors() -> None:
    """`hasattr` needs an AttributeError, users get a ConfigError; both survive pickling."""
    error = refusal("take", Feature.MIX)
    assert error is not None
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, errors.ConfigError)
    assert isinstance(copy, AttributeError)
    assert str(copy) == str(error)
