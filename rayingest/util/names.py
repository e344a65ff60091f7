"""Show names in messages: a few of many, and the one that a mistyped name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 12
_LONGEST = 200


def show_names(names: Iterable[str], wanted: str = "") -> str:
    """Return names for a message: at most 12, those like `wanted` first, and a suggestion.

    "none" without any.
    """
    every = list(names)
    if not every:
        return "none"
    shown = every
    if len(every) > _SHOWN:
        similar = difflib.get_close_matches(wanted, every, n=_SHOWN, cutoff=0.6) if wanted else []
        shown = list(dict.fromkeys([*similar, *every]))[:_SHOWN]
    text = ", ".join(repr(shorten(name)) for name in shown)
    more = f", ... ({len(every):,} in all)" if len(every) > _SHOWN else ""
    return f"{text}{more}{suggest(wanted, every)}" if wanted else f"{text}{more}"


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for a name that is similar to this one or contains it, or ""."""
    by_lower = {other.lower(): other for other in allowed}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    near = near or [other for other in by_lower if len(name) > 2 and name.lower() in other][:1]
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def shorten(text: str) -> str:
    """Return text of at most 200 characters: the begin of a longer one, and its length."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 40]}... ({len(text):,} characters)"
