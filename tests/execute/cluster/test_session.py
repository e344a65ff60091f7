"""Start a cluster, or find one."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ray

from rayingest.errors import WorkerError
from rayingest.execute.cluster.connection import connect
from rayingest.execute.cluster.node_info import FREE_VARIABLE


@pytest.mark.parametrize(
    "error", [Exception("The node timed out."), RuntimeError("Failed to start GCS")]
)
def test_a_cluster_that_does_not_start_is_a_worker_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Ray's reason and advice, whatever exception Ray raises."""

    def fail(**options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    for variable in ("RAY_ADDRESS", "LOCAL_WORLD_SIZE", FREE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(WorkerError) as raised:
        connect(1.0)
    assert str(error).rstrip(".") + ";" in str(raised.value)
    assert "RAY_raylet_start_wait_time_s=120" in str(raised.value)
    assert raised.value.__cause__ is error
    assert FREE_VARIABLE not in os.environ
