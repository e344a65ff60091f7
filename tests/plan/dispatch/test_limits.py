"""The limits of a dispatch that sets none."""

from __future__ import annotations

from dataclasses import asdict

from rayingest.plan.dispatch.limits import Limits


def test_the_defaults_are_small_batches_of_a_stream_without_a_bound() -> None:
    """A change of any of them is a change of how all loaders work."""
    assert asdict(Limits()) == {
        "max_bytes": 4_611_686_018_427_387_904,
        "inline_bytes": 102_400,
        "read_ahead": 16,
        "decode_ahead": 4,
        "ready_batches": 2,
        "max_ready_batches": 32,
        "ready_bytes": 4_194_304,
        "copied_ahead": 0,
        "task_seconds": 0.4,
        "first_task_rows": 16,
        "whole_steps": False,
        "read_blocks": 16,
        "read_bytes": 4_194_304,
        "min_reads": 8,
        "reader_bytes": 67_108_864,
        "max_tries": 4,
        "in_order": False,
    }
