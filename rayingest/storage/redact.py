"""Redact URLs: remove user names, passwords and signatures.

Owns nothing but text. Every URL, and every message of another library that may contain one, passes
through here on its way into an error, a log line, a schema or a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

_CHAIN = re.compile(r"::(?=[A-Za-z][\w+.-]*(?:://|::))")
_URL = re.compile(
    r"^([A-Za-z][\w+.-]*)(://|(?<=..):/)(.*)$", re.DOTALL
)  # one slash: a URL that was normalized as a path
_URL_IN_TEXT = re.compile(
    # Matches only at the begin of a word, so that a long word is scanned once; a URL begins at
    # the word's first letter.
    r"(?<![\w+.-])((?:(?![A-Za-z])[\w+.-])*+)([A-Za-z][\w+.-]*+://[^\s'\"<>]*)"
)
_QUERY_VALUE = re.compile(r"([?&][^=&?]*=)[^&]*")
_CONTAINER_BEFORE_AT = ("abfs", "abfss", "wasb", "wasbs")
_OPEN_OPTION = re.compile(
    r"anon|endpoint_url|region\w*|project|profile|account_name|\w*protocol|addressing_style|"
    r"signature_version|scheme|"
    r"\w*cache\w*|consistency|host|port|mode|access",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 4
_LONG, _CUT, _LONG_WORD = 3000, 2000, 1000
"""Lengths in characters: a text longer than the first is cut to the second.

A word longer than the third may be cut too. A text that was cut is not cut again, with a little
more around it.
"""
_SEPARATORS = re.compile(r"[\s/?&=:@'\"|;<>()]+")
_TAR = (".tar", ".tgz", ".tar.gz")

PIPE = "pipe:"
"""The begin of the name of a shard that is the output of a shell command."""


def redact(url: str) -> str:
    """Return `url` without `user:password@`, and with `***` for each value of its query.

    A plain path stays as it is. Of a command, the program, the base names of tars and 8 hex digits,
    which tell it from others, remain.
    """
    if url.startswith(PIPE):
        return _redact_command(url)
    return "::".join(_redact_one(part) for part in _CHAIN.split(url))


def redact_text(text: str, options: Mapping[str, Any] | None = None, url: str = "") -> str:
    """Return the text with all its URLs redacted, and with `***` for each secret.

    Secrets are the values in the storage options, and the parts of `url` that `redact` hides.
    """
    shown = redact(url)
    hidden = {
        part
        for part in _SEPARATORS.split(url)
        if len(part) >= _SHORTEST_SECRET and part not in shown
    }
    for secret in sorted(hidden.union(_secrets(options or {})), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL_IN_TEXT.sub(lambda found: found[1] + redact(found[2]), text)


def shorten(text: str) -> str:
    """Return a long text as its first 2,000 characters and the number of the others.

    The word at the cut is removed, since `redact_text` would not recognize half a credential:
    unless it is too long for a credential, and no URL.
    """
    if len(text) <= _LONG:
        return text
    shown = text[:_CUT]
    last = (shown.split() or [""])[-1]
    if len(last) < _LONG_WORD or "://" in last:
        shown = shown.rstrip().removesuffix(last)
    return f"{shown}... ({len(text) - len(shown):,} characters more)"


def _redact_one(url: str) -> str:
    match = _URL.match(url)
    if match is None:
        return url
    scheme, separator, rest = match.groups()
    authority, slash, path = rest.partition("/")
    suspect = (
        "@" not in authority
        and not authority.startswith("[")
        and not authority.rpartition(":")[2].isdigit()
    )
    if (
        suspect and ":" in authority and "@" in path
    ):  # a password with a slash, which should be written %2F
        authority, slash, path = path.rpartition("@")[2].partition("/")
    user, at, host = authority.rpartition("@")
    if at and not (scheme in _CONTAINER_BEFORE_AT and ":" not in user):
        authority = host
    rest = authority + slash + path
    if scheme in {"http", "https"}:
        rest, hash_, _ = rest.partition("#")
        rest += "#***" if hash_ else ""
    if scheme in {"http", "https"} and "?" in rest:
        rest, _, query = rest.partition("?")
        rest += "?" + "&".join(_without_value(part) for part in query.split("&"))
    else:
        rest = _QUERY_VALUE.sub(r"\1***", rest)
    return f"{scheme}{separator}{rest}"


def _without_value(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    # A query without names, as of some gateways, is one token.
    return f"{name}=***" if equals else "***"


def _redact_command(url: str) -> str:
    command = url.removeprefix(PIPE)
    program = (command.split() or [""])[0]
    shown = "***" if "=" in program else program.rpartition("/")[2]  # TOKEN=abc program ...
    names = [word for word in _SEPARATORS.split(command)[1:] if word.lower().endswith(_TAR)]
    mark = hashlib.blake2b(url.encode(), digest_size=4).hexdigest()
    return f"{PIPE}{' '.join([shown, *names])} [{mark}]"


def _secrets(options: Any, name: str = "") -> Iterator[str]:
    """Yield all text in the options, and its parts, unless the option's name is public."""
    if isinstance(options, Mapping):
        for key, value in options.items():
            yield from _secrets(value, str(key))
    elif isinstance(options, (list, tuple, set)):
        for value in options:
            yield from _secrets(value, name)
    elif isinstance(options, bytes):
        yield from _secrets(options.decode("utf-8", "backslashreplace"), name)
    elif isinstance(options, str) and not _OPEN_OPTION.fullmatch(name):
        # Messages quote parts of values such as "Bearer TOKEN" and "AccountName=a;AccountKey=KEY".
        parts = re.split(r"[\s;,]+", options)
        composed = [*parts, *(part.partition("=")[2] for part in parts)]
        yield from (text for text in [options, *composed] if len(text) >= _SHORTEST_SECRET)
