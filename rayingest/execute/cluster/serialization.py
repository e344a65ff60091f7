"""Check that decoded values can be sent to the training process, and name the one that cannot.

The decoder checks before it returns them: Ray itself would report only that the task failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import ray

from rayingest.errors import ConfigError, DataError
from rayingest.execute.work import BlockRows
from rayingest.plan.protocols import Columns
from rayingest.transforms.open_block import OpenBlock

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def check_serializable(
    result: Columns | list[dict[str, Any]],
    rows: BlockRows,
    bad: Collection[int],
    blocks: Sequence[OpenBlock],
) -> None:
    """Raise ConfigError with field and sample if a value cannot be sent.

    `result` was made of these rows of blocks, without the rows at the `bad` places. The error names
    the first sample that cannot be sent.
    """
    doubtful = list(_doubtful(result))
    if not doubtful or _pickle_error([value for _, _, value in doubtful]) is None:
        return
    for place, name, value in sorted(doubtful, key=lambda one: one[0]):
        error = _pickle_error(value)
        if error is not None:
            good = np.delete(np.arange(len(rows.ordinals)), list(bad))
            reason = (
                f"field {name!r} is a {type(value).__qualname__}, which cannot be sent to the "
                f"training process ({error}): convert it to a number, an array, text or bytes in "
                ".map, or leave it out with .select"
            )
            located = DataError(reason, **rows.where(blocks, good[place]))
            raise ConfigError(str(located)) from error


def _doubtful(result: Columns | list[dict[str, Any]]) -> Iterator[tuple[int, str, Any]]:
    """Yield place, field and value of every value that is not plainly serializable."""
    if not isinstance(result, dict):
        for place, sample in enumerate(result):
            yield from (
                (place, name, value) for name, value in sample.items() if not _is_plain(value)
            )
        return
    for name, column in result.items():
        if not _is_plain(column):
            yield from (
                (place, name, value) for place, value in enumerate(column) if not _is_plain(value)
            )


def _is_plain(value: Any) -> bool:
    """Return whether the value is a number, text, an array of numbers, or a container of these."""
    try:
        return _is_plain_inside(value)
    except RecursionError:  # pickling may fail with it as well
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


def _pickle_error(value: Any) -> Exception | None:
    """Return why the value cannot be pickled, None if it can. Does not copy the data of arrays."""
    try:
        ray.cloudpickle.dumps(value, protocol=5, buffer_callback=lambda _: None)
    except Exception as error:
        return error
    return None
