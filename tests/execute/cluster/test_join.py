"""Join a running cluster: the wait has a limit, and errors name the address and the token."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from rayingest.errors import ConfigError
from rayingest.execute.cluster import join as joining
from rayingest.execute.cluster.authentication import TOKEN, make_token_without_home
from rayingest.execute.cluster.connection import connect, connect_to_running
from rayingest.execute.cluster.join import join


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not connected to Ray, and fails if it calls Ray to be."""

    def fail(**options: object) -> None:
        raise AssertionError(f"ray.init({options})")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)


@pytest.mark.parametrize("listens", [False, True])
def test_start_timeout_bounds_connecting(
    listens: bool, unconnected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing listens, and where a server never answers. The error names RAY_ADDRESS."""
    with silent_server() as silent:
        address = silent if listens else "127.0.0.1:1"
        monkeypatch.setenv("RAY_ADDRESS", address)
        begun = time.monotonic()
        with pytest.raises(ConfigError, match=f"RAY_ADDRESS={address}: no Ray cluster responds"):
            connect(0.5)
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8265", "head", "10.0.0.1:99999", "head:port", "/tmp/ray"]
)
def test_a_malformed_address_is_refused_at_once(
    address: str, unconnected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment as well as from a command."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS={address} is not HOST:PORT"):
        connect(60.0)
    with pytest.raises(ConfigError, match=f"address={address} is not HOST:PORT"):
        connect_to_running(address)


def test_no_cluster_on_this_machine_is_an_error(
    unconnected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a command without an address."""

    def find() -> str:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(joining, "_find_running", find)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS=auto: .*Could not find any running Ray"):
        connect_to_running(None)


def test_a_running_head_is_joined_by_its_address(
    cluster: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token where it asks for none."""
    joined: list[dict[str, object]] = []
    address = ray.get_runtime_context().gcs_address
    monkeypatch.setattr(ray, "init", lambda **options: joined.append(options))
    join(address, "RAY_ADDRESS", 10.0)
    assert [options["address"] for options in joined] == [address]


def test_an_ipv6_address_is_joined(unconnected: None) -> None:
    """With brackets, as Ray writes it."""
    with pytest.raises(ConfigError, match="no Ray cluster responds there"):
        join("[::1]:1", "RAY_ADDRESS", 0.2)


NO_HOME = """
import os, sys
from rayingest.execute.cluster.authentication import make_token_without_home
make_token_without_home()
print(len(os.environ.get("RAY_AUTH_TOKEN", "")))
"""


def test_a_user_without_a_home_gets_a_token_in_the_environment(tmp_path: Path) -> None:
    """Ray cannot write a file then. Where it can, it does."""
    printed = []
    for home in ("/dev/null/home", str(tmp_path)):
        variables = {**os.environ, "HOME": home}
        for name in ("RAY_AUTH_MODE", TOKEN):
            variables.pop(name, None)
        command = [sys.executable, "-c", NO_HOME]
        printed.append(subprocess.check_output(command, env=variables, text=True, timeout=60))
    assert printed == ["64\n", "0\n"]


@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_a_choice_of_the_user_stays(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is made where authentication is off, or where the environment has one."""
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv(TOKEN, "a token")
    make_token_without_home()
    assert os.environ[TOKEN] == "a token"
