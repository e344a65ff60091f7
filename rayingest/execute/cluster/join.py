"""Join a running cluster: find out first whether it responds, and whether it accepts the token.

`ray.init` retries for minutes where no cluster responds, and for ever where one does not accept the
process's token. So this module asks the cluster's head first, with a deadline.
"""

from __future__ import annotations

import os
import re
import time

import grpc
import ray
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from rayingest.errors import ConfigError
from rayingest.execute.cluster.authentication import (
    MODE,
    REMEDY,
    send_token,
    stop_sending_token,
    token_headers,
)

_CALL_SECONDS = 5.0
_POLL_SECONDS = 0.1


def join(address: str, name: str, seconds: float, log_to_driver: bool = True) -> None:
    """Connect this process to the cluster at `address`: HOST:PORT, or "auto" for this machine's.

    Sends Ray's token if the cluster asks for one. `name` says in messages where the address is
    from.

    Raises:
        ConfigError: the address is malformed, no cluster responds there within `seconds` seconds,
            it does not accept this process's token, or this machine is no node of it.
    """
    where = f"{name}={address}"
    try:
        found = _find_running() if address == "auto" else _parse(address, where)
        _await_head(found, where, seconds)
        ray.init(address=found, log_to_driver=log_to_driver, logging_level="warning")
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        reason = str(error.__cause__ or error).rstrip(".")
        raise ConfigError(
            f"{where}: Ray cannot connect this process to the cluster: {reason}; run on a machine "
            "that is a node of a running cluster"
        ) from error


def _find_running() -> str:
    """Return the address of the cluster on this machine. ConnectionError if there is none."""
    from ray._private.services import canonicalize_bootstrap_address

    return str(canonicalize_bootstrap_address("auto"))


def _parse(address: str, where: str) -> str:
    found = re.fullmatch(r"\[?([^/\[\]]+?)\]?:(\d{1,5})", address)
    if found is None or int(found[2]) > 65535:
        raise ConfigError(
            f"{where} is not HOST:PORT; give the address of a cluster's head, for example "
            "10.0.0.1:6379"
        )
    return f"[{found[1]}]:{found[2]}" if ":" in found[1] else address


def _await_head(address: str, where: str, seconds: float) -> None:
    """Return once the head accepts calls of this process. ConfigError if it does not."""
    deadline = time.monotonic() + seconds
    sends_token = False
    while (error := _ask(address, deadline - time.monotonic())) is not None:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            if not sends_token and send_token():
                sends_token = True
                continue
            if sends_token:
                stop_sending_token()
            raise ConfigError(_explain_refusal(where, sends_token))
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise ConfigError(
                f"{where} is a server that is not the head of a Ray cluster; give the address "
                "that `ray start --head` prints, for example 10.0.0.1:6379"
            )
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"{where}: no Ray cluster responds there within {seconds:g} s: {error.details()}; "
                "give the address of a running cluster's head, for example 10.0.0.1:6379, or "
                "start one there with `ray start --head`"
            )
        time.sleep(_POLL_SECONDS)


def _ask(address: str, seconds: float) -> grpc.RpcError | None:
    """Ask the head at `address` whether it runs; return the error, None if it does."""
    timeout = min(max(seconds, _POLL_SECONDS), _CALL_SECONDS)
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        request = gcs_service_pb2.CheckAliveRequest()
        try:
            head.CheckAlive(request, timeout=timeout, metadata=token_headers())
        except grpc.RpcError as error:
            return error
    return None


def _explain_refusal(where: str, tried: bool) -> str:
    mode = os.environ.get(MODE)
    if tried:
        reason = "it does not accept the token of this user"
    elif mode is None:
        reason = "this user has no token"
    elif mode.lower() == "token":
        reason = "it does not accept the token of this process"
    else:
        reason = f"RAY_AUTH_MODE={mode} is set here"
    return f"{where}: the cluster asks for Ray's authentication token, and {reason}; {REMEDY}"
