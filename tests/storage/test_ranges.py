"""Ranges joined into few requests give every requested byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayingest.storage.ranges import coalesce, slice_spans

DATA = bytes(range(200))
RANGES = st.lists(
    st.tuples(st.integers(0, 199), st.integers(0, 60)).map(lambda r: (r[0], min(200, sum(r)))),
    max_size=9,
)


@given(RANGES, st.integers(0, 20), st.integers(1, 80))
def test_what_is_cut_is_what_was_asked_for(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    """Ranges may come in any order, overlap, or be empty."""
    spans = coalesce(ranges, gap, most)
    assert spans == sorted(set(spans))
    pieces = [DATA[begin:end] for begin, end in spans]
    assert slice_spans(ranges, spans, pieces) == [DATA[begin:end] for begin, end in ranges]


def test_neighbours_become_one_request() -> None:
    """Near ranges are joined, up to a maximum length."""
    assert coalesce([(50, 60), (0, 10), (12, 20), (20, 30)], gap=5, most=30) == [(0, 30), (50, 60)]
    assert coalesce([(0, 10), (10, 20)], gap=5, most=15) == [(0, 10), (10, 20)]
