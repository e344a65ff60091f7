"""Folders with an `index.json` that names their shards, as MosaicML's MDS and LitData write them.

Owns what such an index decides: a shard that it names and that is not there is an error, one that it does not name is
not read. What stands in the JSON is known to the format.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rayingest.errors import ConfigError, DataError
from rayingest.formats.protocol import Shard
from rayingest.storage.files import Storage
from rayingest.storage.listing import Found, within_url
from rayingest.storage.redact import redact
from rayingest.storage.urls import Listing, Urls, find_shards

_NAME = "index.json"
_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class Entry:
    """What an index says of one shard.

    `sizes`: its bytes, where they are known, by the name below the folder; of several names, as of a plain and a
    compressed file, the first that is there is read. `hashes`: of its plain contents, hexadecimal, by algorithm.
    """

    sizes: Mapping[str, int | None]
    samples: int
    hashes: Mapping[str, str] = field(default_factory=dict)


Parse = Callable[[Any], Sequence[Entry]]
"""The entries of a parsed index. KeyError, TypeError, ValueError or AttributeError for what is none."""


def list_indexed(urls: Urls, suffixes: Sequence[str], storage: Storage, parse: Parse) -> Listing:
    """The shards that `urls` names, in the order of `list_shards`; of folders with an index, those in it."""
    found = find_shards(urls, (*suffixes, "/" + _NAME), storage)
    folders = [shard.url.removesuffix(_NAME) for shard in found if shard.url.endswith("/" + _NAME)]
    shards = {shard.url: shard for shard in found if not shard.url.endswith("/" + _NAME)}
    for folder in sorted(folders, key=len):
        if any(folder != other and folder.startswith(other) for other in folders):
            continue  # the index of the folder above names these shards too
        named = _named(storage, folder, shards, parse)
        left = [url for url in shards if url.startswith(folder) and url not in named]
        if left:
            _log.warning("%s does not name %s: not read", redact(folder + _NAME), ", ".join(map(redact, left[:5])))
        shards = {url: shard for url, shard in shards.items() if url not in left}
    if not shards:
        raise ConfigError(f"no shard in {redact(str(urls))}: its {_NAME} names none")
    return Listing.of(list(shards.values()))


def entry_of(shard: Shard, parse: Parse) -> Entry | None:
    """What the index in the shard's folder says of it; None where there is none, or it does not name the shard."""
    folder, _, name = within_url(shard.url).rpartition("/")
    index = folder_index(shard.storage, folder + "/") if folder and "::" not in shard.url else None
    if index is None:
        return None
    with index_understood(folder + "/"):
        return next((entry for entry in parse(index) if name in entry.sizes), None)


@lru_cache(maxsize=64)
def folder_index(storage: Storage, folder: str) -> Any:
    """The parsed index of a folder, whose URL ends in "/"; None where there is none."""
    data = storage.read_if_there(folder + _NAME)
    with index_understood(folder):
        return None if data is None else json.loads(data)


def _named(storage: Storage, folder: str, shards: Mapping[str, Found], parse: Parse) -> set[str]:
    """URLs of the shards that the folder's index names."""
    with index_understood(folder):
        entries = parse(folder_index(storage, folder))
    named = set()
    for entry in entries:
        there = [folder + name for name in entry.sizes if folder + name in shards]
        if not there:
            name = next(iter(entry.sizes))
            raise DataError(f"{_NAME} names the shard, and it is not there", shard=redact(folder + name), offset=0)
        expected = entry.sizes[there[0].removeprefix(folder)]
        size = shards[there[0]].size
        if expected is not None and size != expected:
            reason = f"the shard has {size} bytes, and {expected} by its {_NAME}: it is cut off or was written again"
            raise DataError(reason, shard=redact(there[0]), offset=min(size, expected))
        named.add(there[0])
    return named


@contextmanager
def index_understood(folder: str) -> Iterator[None]:
    """Inside, what is wrong with an index becomes an error that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"not an {_NAME} that is known: {type(error).__name__}: {error}"
        raise DataError(reason, shard=redact(folder + _NAME), offset=0) from error
