"""Send Ray's token where a cluster asks for one.

From version 2.60 on, Ray asks for a token on each cluster that `ray.init` starts, and on each that
`ray start` starts where a token exists. The token is in `RAY_AUTH_TOKEN`, in the file that
`RAY_AUTH_TOKEN_PATH` names, or in `~/.ray/auth_token`, which `ray.init` writes. A process sends it
if `RAY_AUTH_MODE` is `token`. Ray sets this variable where it starts a cluster, but not where a
process joins one by its address: such a process waits for ever.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - the name of a variable
REMEDY = (
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the output of `ray get-auth-token` on the "
    "cluster's head"
)


def token_headers() -> tuple[tuple[str, str], ...]:
    """Return the metadata that authenticates a call of this process to Ray; none if it is off."""
    try:
        from ray._private.authentication.http_token_authentication import (
            get_auth_headers_if_auth_enabled,
        )
    except ImportError:  # before Ray 2.52
        return ()
    headers = get_auth_headers_if_auth_enabled({})
    return tuple((name.lower(), value) for name, value in headers.items())


def send_token() -> bool:
    """Send the token from now on, unless there is none or the user has chosen; return whether."""
    if MODE in os.environ or not _has_token():
        return False
    os.environ[MODE] = "token"
    _read_environment()
    return True


def stop_sending_token() -> None:
    """Undo `send_token`: the cluster does not accept the token."""
    del os.environ[MODE]
    _read_environment()


def make_token_without_home() -> None:
    """Make a token in the environment if Ray would write one to a folder that it cannot write."""
    if os.environ.get(MODE, "token").lower() != "token" or _has_token():
        return
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        folder = Path.home() / ".ray"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    os.environ[TOKEN] = secrets.token_hex(32)


def _has_token() -> bool:
    try:
        from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
    except ImportError:  # before Ray 2.52
        return False
    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()
    return bool(loader.has_token(ignore_auth_mode=True))


def _read_environment() -> None:
    """Let Ray read its settings from the environment again: it has done so when imported."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    Config.initialize("")
