"""URLs as they may be shown: without user names, passwords and signatures.

Owns nothing but text. Everything that puts a URL, or another library's message that may hold one, into an error, a log
line, a schema or a file goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_CHAIN = re.compile(r"::(?=[A-Za-z][\w+.-]*(?:://|::))")
_URL = re.compile(r"^([A-Za-z][\w+.-]*)://(.*)$", re.DOTALL)
_URL_IN_TEXT = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"<>]*")
_QUERY_VALUE = re.compile(r"([?&][^=&?]*=)[^&]*")
_SECRET_OPTION = re.compile(r"secret|token|password|passwd|key|sas|credential|connection_string|auth", re.IGNORECASE)
_CONTAINER_BEFORE_AT = ("abfs", "abfss", "wasb", "wasbs")
_SHORTEST_SECRET = 6


def redact(url: str) -> str:
    """`url` without `user:password@`, and with `***` for each value of its query. A plain path stays as it is."""
    return "::".join(_redact_one(part) for part in _CHAIN.split(url))


def redact_text(text: str, options: Mapping[str, Any] | None = None) -> str:
    """A message with every URL in it redacted, and with `***` for secrets that stand in the storage options."""
    for secret in sorted(set(_secrets(options or {})), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL_IN_TEXT.sub(lambda found: redact(found.group()), text)


def _redact_one(url: str) -> str:
    match = _URL.match(url)
    if match is None:
        return url
    scheme, rest = match.groups()
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and not (scheme in _CONTAINER_BEFORE_AT and ":" not in user):
        authority = host
    rest = authority + slash + path
    if scheme in {"http", "https"} and "?" in rest:
        rest, _, query = rest.partition("?")
        rest += "?" + "&".join(_without_value(part) for part in query.split("&"))
    else:
        rest = _QUERY_VALUE.sub(r"\1***", rest)
    return f"{scheme}://{rest}"


def _without_value(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    # A query without names, as some gateways use, is a token as a whole.
    return f"{name}=***" if equals else "***"


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET and _SECRET_OPTION.search(str(name)):
            yield value
