"""What decoders made must survive the way to the training process: which values would not, and whose they are.

Looked at before it is sent, as Ray would say no more than that the task failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import ray

from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import Rows
from rayingest.plan.protocols import Columns
from rayingest.transforms.open_block import OpenBlock

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def check_sendable(
    made: Columns | list[dict[str, Any]],
    rows: Rows,
    bad: Collection[int],
    blocks: Sequence[OpenBlock],
) -> None:
    """ConfigError that names field and sample, unless all values of columns, or of samples, can be sent.

    They were made of these rows of blocks, those at the `bad` places left out. The first sample that cannot is named.
    """
    doubtful = list(_doubtful(made))
    if not doubtful or _refusal([value for _, _, value in doubtful]) is None:
        return
    for place, name, value in sorted(doubtful, key=lambda one: one[0]):
        error = _refusal(value)
        if error is not None:
            good = np.delete(np.arange(len(rows.ordinals)), list(bad))
            what = f"field {name!r} is a {type(value).__qualname__}, which cannot be sent to the training process"
            mend = "make it a number, an array, text or bytes in .map, or leave it out with .select"
            told = DataError(f"{what} ({error}): {mend}", **rows.where(blocks, good[place]))
            raise ConfigError(str(told)) from error


def _doubtful(made: Columns | list[dict[str, Any]]) -> Iterator[tuple[int, str, Any]]:
    """Place, field and value, of those that are more than numbers, text and what holds such."""
    if not isinstance(made, dict):
        for place, sample in enumerate(made):
            yield from (
                (place, name, value) for name, value in sample.items() if not _is_plain(value)
            )
        return
    for name, column in made.items():
        if not _is_plain(column):
            yield from (
                (place, name, value) for place, value in enumerate(column) if not _is_plain(value)
            )


def _is_plain(value: Any) -> bool:
    try:
        return _is_plain_inside(value)
    except RecursionError:  # which pickling may meet as well
        return False


def _is_plain_inside(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is np.ndarray:
        return not value.dtype.hasobject
    if kind is dict:
        value = [*value, *value.values()]
    elif kind not in {list, tuple}:
        return False
    return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain_inside, value))


def _refusal(value: Any) -> Exception | None:
    """Why it cannot be pickled, None where it can; the data of arrays is not copied for it."""
    try:
        ray.cloudpickle.dumps(value, protocol=5, buffer_callback=lambda _: None)
    except Exception as error:
        return error
    return None
