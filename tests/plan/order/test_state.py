"""Positions as states."""

import json
import logging
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayingest.errors import StateError
from rayingest.plan.order.offsets import Offsets, encode_mark
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import EpochLength
from rayingest.plan.order.state import StateCodec
from tests.support.plan_cases import manifest, window_planner

ORDER = {
    "kind": "window",
    "version": 1,
    "samples": 1_000,
    "batch": 10,
    "partial": "drop",
    "seed": 17,
    "lanes": 2,
    "window_steps": 16,
}
IDENTITY = {"fingerprint": "00ff00ff00ff00ff", "order": ORDER, "image_backend": "turbo"}
CODEC = StateCodec(IDENTITY, "5e6f7a8b", lambda epoch: 100)
STATE = CODEC.state(3, 42)


def changed(**order: Any) -> dict[str, Any]:
    """The state of an order that differs in these parameters."""
    return STATE | {"order": ORDER | order}


@given(st.integers(0, 2**62), st.integers(0, 99))
def test_a_position_survives_json(epoch: int, step: int) -> None:
    """What is saved as JSON and loaded is the position that was saved."""
    assert CODEC.position(json.loads(json.dumps(CODEC.state(epoch, step)))) == (epoch, step)


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """After the last step nothing is left to go on with."""
    assert CODEC.position(CODEC.state(3, 100)) == (4, 0)


def test_a_state_is_small() -> None:
    """Under 1 KB of JSON, with every number as large as it can get, and every mark."""
    order = {**ORDER, "samples": 2**62, "batch": 2**40, "seed": -(2**63), "lanes": 2**40}
    marks = {"subset": "s" * 160, "lengths": "l" * 16, "weights": "w" * 16, "epoch_steps": 2**62}
    identity = {"fingerprint": "f" * 16, "order": {**order, **marks}, "image_backend": "pillow"}
    codec = StateCodec(identity, "c" * 64, lambda epoch: 2**63)
    assert len(json.dumps(codec.state(2**62, 2**62)).encode()) < 1_000


def test_a_state_names_what_it_is_a_state_of() -> None:
    """It has the version, position, fingerprint, order with its kind, image backend and code."""
    assert STATE == {
        "version": 2,
        "epoch": 3,
        "step": 42,
        "fingerprint": "00ff00ff00ff00ff",
        "order": ORDER,
        "image_backend": "turbo",
        "code": "5e6f7a8b",
    }


def test_a_planner_names_its_order() -> None:
    """Its kind with a version, all parameters, the marks of the data, and an epoch of its own
    length.
    """
    data = manifest([50, 50])
    order = Order.resolve(data, batch=10, seed=17, window=40, lanes=2)
    assert window_planner(data, order).identity == {
        **ORDER,
        "samples": 100,
        "window_steps": 4,
    }
    marks = {"subset": "take(100)", "lengths": "0f"}
    for epoch_steps, extra in ((10, {}), (7, {"epoch_steps": 7})):
        planner = window_planner(
            data, order, epoch_length=EpochLength(10, epoch_steps), identity=marks
        )
        assert planner.identity == {**ORDER, "samples": 100, "window_steps": 4, **marks, **extra}


@pytest.mark.parametrize(
    ("name", "value"), [("fingerprint", "ff00ff00ff00ff00"), ("image_backend", "pillow")]
)
def test_what_differs_is_named_with_both_values(name: str, value: Any) -> None:
    """Other data or another backend is refused; so is a state that lacks the entry."""
    with pytest.raises(
        StateError, match=f"{name}: the state has {value!r}, this loader {STATE[name]!r}"
    ):
        CODEC.position(STATE | {name: value})
    with pytest.raises(StateError, match=f"{name}: the state has None"):
        CODEC.position({key: kept for key, kept in STATE.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("samples", 999),
        ("batch", 20),
        ("partial", "pad"),
        ("seed", 18),
        ("seed", None),
        ("lanes", 1),
        ("window_steps", 17),
        ("subset", "take(3)"),
    ],
)
def test_every_parameter_of_the_order_is_compared(name: str, value: Any) -> None:
    """Also one that only the state has, and one that only the loader has."""
    mine = ORDER.get(name)
    with pytest.raises(
        StateError, match=f"{name}: the state has {re.escape(repr(value))}, this loader {mine!r}"
    ):
        CODEC.position(changed(**{name: value}))
    if mine is not None:
        order = {key: kept for key, kept in ORDER.items() if key != name}
        with pytest.raises(StateError, match=f"{name}: the state has None, this loader {mine!r}"):
            CODEC.position(STATE | {"order": order})


def test_another_kind_of_order_is_named_alone() -> None:
    """Its other parameters mean something else."""
    with pytest.raises(StateError) as caught:
        CODEC.position(changed(kind="packed", batch=3, bins="cut at 10"))
    assert "kind: the state has 'packed', this loader 'window'" in str(caught.value)
    assert "batch" not in str(caught.value)
    with pytest.raises(StateError, match="order: the state has None"):
        CODEC.position(STATE | {"order": None})


def test_another_image_backend_is_named_with_the_way_to_go_on() -> None:
    """The loader made with it; not where other things differ too, as that would not help."""
    with pytest.raises(StateError, match=r"make the loader with image_backend='pillow' to go on$"):
        CODEC.position(STATE | {"image_backend": "pillow"})
    with pytest.raises(StateError, match=r"this loader 'turbo'$"):
        CODEC.position(changed(seed=0) | {"image_backend": "pillow"})


def test_everything_that_differs_is_named_at_once() -> None:
    """One message for all entries, without those that agree."""
    with pytest.raises(StateError) as caught:
        CODEC.position(changed(batch=20, seed=0) | {"image_backend": "x"})
    assert all(f"{name}:" in str(caught.value) for name in ("batch", "seed", "image_backend"))
    assert "lanes" not in str(caught.value)


def test_a_state_of_the_old_form_is_refused_with_what_helps() -> None:
    """In version 1, `order` was a number, beside the parameters."""
    old = {"version": 1, "epoch": 0, "step": 3, "order": 1, "batch": 10, "decode": "turbo"}
    for state in (old, {"version": 1, "stream": 1, "step": 3}):
        with pytest.raises(StateError, match=r"version 1, .*the rayingest that saved it, or begin"):
            CODEC.position(state)


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_version_is_refused_before_anything_else(version: Any) -> None:
    """Its fields may mean something else; both versions are named."""
    with pytest.raises(StateError, match=f"version is {version!r}.* reads version 2"):
        CODEC.position({"version": version})
    with pytest.raises(StateError, match="version is None"):
        CODEC.position({})


@pytest.mark.parametrize("state", [None, [], "{}", 3, [("version", 2)]])
def test_what_is_no_dict_is_no_state(state: Any) -> None:
    """The type that was given is named."""
    with pytest.raises(StateError, match=f"not {type(state).__name__}"):
        CODEC.position(state)


@pytest.mark.parametrize("name", ["epoch", "step"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", True, None, [1]])
def test_a_position_is_two_counts(name: str, value: Any) -> None:
    """Negative numbers, other types and missing fields are refused, with both values named."""
    with pytest.raises(
        StateError, match=r"epoch .*, step .* is not a position in epochs of 100 steps"
    ):
        CODEC.position(STATE | {name: value})


def test_a_step_past_the_end_is_refused() -> None:
    """It belongs to no epoch of this stream."""
    with pytest.raises(StateError, match="step 101 is not a position in epochs of 100 steps"):
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


# Sources without end


def test_a_stream_carries_its_offsets() -> None:
    """Another loader goes on from the state's step, its offsets and its fields."""
    saved, loaded = Offsets(["a", "b"]), Offsets(["a", "b"])
    saved.begin(0)
    saved.note(saved.block(0), encode_mark(1, [3, "x"]))
    saved.schema = {"n": "int64"}
    codecs = [StateCodec(IDENTITY, "c", lambda epoch: 100, of) for of in (saved, loaded)]
    state = json.loads(json.dumps(codecs[0].state(0, 1)))
    assert state["turn"] == "b"
    assert state["offsets"] == {"a": 3, "b": "x"}
    assert codecs[1].position(state) == (0, 1)
    assert loaded.at(1) == encode_mark(1, [3, "x"])
    assert loaded.schema == {"n": "int64"}


def test_a_state_of_other_code_leaves_the_fields_to_be_learned_again() -> None:
    """They may be others now; the offsets hold all the same."""
    saved, loaded = Offsets(["a"]), Offsets(["a"])
    saved.schema = {"n": "int64"}
    state = StateCodec(IDENTITY, "old", lambda epoch: 100, saved).state(0, 0)
    assert StateCodec(IDENTITY, "new", lambda epoch: 100, loaded).position(state) == (0, 0)
    assert loaded.schema is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"offsets": {"b": 3}}, r"partitions: the state has \['b'\], this loader \['a'\]"),
        ({"offsets": None}, r"partitions: the state has None"),
        ({"turn": "b"}, r"partitions"),
        ({"epoch": 1}, r"epoch: the state has 1"),
        ({"schema": {"m": "int64"}}, r"fields: .*before its first batch"),
    ],
)
def test_a_stream_refuses_a_state_that_it_cannot_go_on_from(
    entry: dict[str, Any], message: str
) -> None:
    """Other partitions, an epoch that no stream has, or other fields than were learned."""
    offsets = Offsets(["a"])
    offsets.schema = {"n": "int64"}
    codec = StateCodec(IDENTITY, "c", lambda epoch: 100, offsets)
    state = codec.state(0, 0)
    with pytest.raises(StateError, match=message):
        codec.position(state | entry)
    assert offsets.at(0) == encode_mark(0, [None])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            STATE | {"fingerprint": "0"},
            "fingerprint: the state has '0', this loader '00ff00ff00ff00ff'",
        ),
        (
            STATE | {"image_backend": "pillow"},
            "image_backend: the state has 'pillow', this loader 'turbo'. Images are decoded by "
            "another backend: make the loader with image_backend='pillow' to go on",
        ),
        (
            {name: value for name, value in STATE.items() if name != "code"}
            | {"image_backend": "pillow"},
            "image_backend: the state has 'pillow', this loader 'turbo'; code: the state lacks it",
        ),
    ],
    ids=["data", "backend", "backend and code"],
)
def test_the_remedy_is_given_where_the_image_backend_alone_differs(
    state: dict[str, Any], words: str
) -> None:
    """Another backend can be asked for; other data cannot."""
    with pytest.raises(StateError) as raised:
        CODEC.position(state)
    assert str(raised.value) == f"the state belongs to another stream; {words}"
