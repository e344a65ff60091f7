"""Positions as states."""

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayingest.errors import StateError
from rayingest.plan.order.order import Order
from rayingest.plan.order.state import StateCodec

ORDER = Order(samples=1_000, batch=10, partial="drop", seed=17, lanes=2, window_steps=16)
CODEC = StateCodec(fingerprint="00ff00ff00ff00ff", order=ORDER, decode="1a2b3c4d", code="5e6f7a8b")
STATE = CODEC.state(3, 42)


@given(st.integers(0, 2**62), st.integers(0, 99))
def test_a_position_survives_json(epoch: int, step: int) -> None:
    """What is saved as JSON and loaded is the position that was saved."""
    assert CODEC.position(json.loads(json.dumps(CODEC.state(epoch, step)))) == (epoch, step)


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """After the last step nothing is left to go on with."""
    assert CODEC.position(CODEC.state(3, 100)) == (4, 0)


def test_a_state_is_small() -> None:
    """Under 1 KB of JSON, with every number as large as it can get."""
    large = Order(2**62, 2**40, "short", -(2**63), 2**40, 2**40)
    codec = StateCodec("f" * 16, large, decode="d" * 64, code="c" * 64)
    assert len(json.dumps(codec.state(2**62, 2**62)).encode()) < 1_000


def test_a_state_names_what_it_is_a_state_of() -> None:
    """Format version, position, fingerprint, the order's version and parameters, the decode path, the code."""
    assert STATE == {
        "version": 1,
        "epoch": 3,
        "step": 42,
        "fingerprint": "00ff00ff00ff00ff",
        "order": 1,
        "samples": 1_000,
        "batch": 10,
        "partial": "drop",
        "seed": 17,
        "lanes": 2,
        "window_steps": 16,
        "decode": "1a2b3c4d",
        "code": "5e6f7a8b",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fingerprint", "ff00ff00ff00ff00"),
        ("order", 2),
        ("samples", 999),
        ("batch", 20),
        ("partial", "pad"),
        ("seed", 18),
        ("seed", None),
        ("lanes", 1),
        ("window_steps", 17),
        ("decode", "00000000"),
    ],
)
def test_what_differs_is_named_with_both_values(name: str, value: Any) -> None:
    """Other data, another order, batch or decode path is refused; so is a state that lacks the field."""
    with pytest.raises(
        StateError, match=f"{name}: the state has {value!r}, this loader {STATE[name]!r}"
    ):
        CODEC.position(STATE | {name: value})
    with pytest.raises(StateError, match=f"{name}: the state has None"):
        CODEC.position({key: kept for key, kept in STATE.items() if key != name})


def test_another_decode_path_is_named_with_the_way_to_go_on() -> None:
    """The loader made with it; not where other things differ too, as that would not help."""
    with pytest.raises(StateError, match=r"make the loader with image_backend='turbo' to go on$"):
        CODEC.position(STATE | {"decode": "turbo"})
    with pytest.raises(StateError, match=r"this loader '1a2b3c4d'$"):
        CODEC.position(STATE | {"decode": "turbo", "seed": 0})


def test_everything_that_differs_is_named_at_once() -> None:
    """One message for all fields, without those that agree."""
    with pytest.raises(StateError) as caught:
        CODEC.position(STATE | {"batch": 20, "seed": 0, "decode": "x"})
    assert all(f"{name}:" in str(caught.value) for name in ("batch", "seed", "decode"))
    assert "lanes" not in str(caught.value)


@pytest.mark.parametrize("field", ["samples", "batch", "partial", "seed", "lanes", "window_steps"])
def test_every_parameter_of_the_order_is_checked(field: str) -> None:
    """A codec for an order that differs in one parameter refuses the state."""
    other = "pad" if field == "partial" else getattr(ORDER, field) + 2
    with pytest.raises(StateError, match=f"{field}: "):
        replace(CODEC, order=replace(ORDER, **{field: other})).position(STATE)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused_before_anything_else(version: Any) -> None:
    """Its fields may mean something else; both versions are named."""
    with pytest.raises(StateError, match=f"version is {version!r}.* reads version 1"):
        CODEC.position({"version": version})
    with pytest.raises(StateError, match="version is None"):
        CODEC.position({})


@pytest.mark.parametrize("state", [None, [], "{}", 3, [("version", 1)]])
def test_what_is_no_dict_is_no_state(state: Any) -> None:
    """The type that was given is named."""
    with pytest.raises(StateError, match=f"not {type(state).__name__}"):
        CODEC.position(state)


@pytest.mark.parametrize("name", ["epoch", "step"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", True, None, [1]])
def test_a_position_is_two_counts(name: str, value: Any) -> None:
    """Negative numbers, other types and missing fields are refused, with both values named."""
    with pytest.raises(
        StateError, match=r"epoch .*, step .* is no position in epochs of 100 steps"
    ):
        CODEC.position(STATE | {name: value})


def test_a_step_past_the_end_is_refused() -> None:
    """It belongs to no epoch of this stream."""
    with pytest.raises(StateError, match="step 101 is no position in epochs of 100 steps"):
        CODEC.position(CODEC.state(0, 101))


def test_changed_code_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Once, by the package's logger, and the position is still taken."""
    with caplog.at_level(logging.WARNING, "rayingest"):
        assert replace(CODEC, code="other").position(STATE) == (3, 42)
    (record,) = caplog.records
    assert record.name == "rayingest"
    assert "code has changed" in record.getMessage()


def test_the_same_code_is_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    """A state of this very stream goes without a word."""
    with caplog.at_level(logging.DEBUG, "rayingest"):
        CODEC.position(STATE)
    assert not caplog.records


def test_unknown_fields_are_left_alone() -> None:
    """A newer minor writer may say more; what is checked is all there."""
    assert CODEC.position(STATE | {"saved_by": "job 7"}) == (3, 42)
