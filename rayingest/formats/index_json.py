"""Read folders whose JSON file names their shards: the `index.json` of MDS and LitData, and others.

Owns what such an index decides: a shard that it names and that is missing is an error, and a shard
that it does not name is not read. What is in the JSON is known to the format.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from rayingest.errors import ConfigError, DataError
from rayingest.formats.protocol import Shard
from rayingest.storage.file_info import FileInfo, local_path, within_url
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, Urls, find_shards
from rayingest.storage.redact import redact

INDEX = "index.json"
_SHOWN = 5
_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class Entry:
    """What an index says of one shard.

    `sizes`: its bytes (None if unknown) by its name below the folder. If there are several names,
    such as a plain and a compressed file, the first that exists is read. `samples`: -1 if unknown.
    `hashes`: of its uncompressed contents, hexadecimal, by algorithm.
    """

    sizes: Mapping[str, int | None]
    samples: int = -1
    hashes: Mapping[str, str] = field(default_factory=dict)


Parse = Callable[[Any], Sequence[Entry]]
"""Return the entries of a parsed index.

KeyError, TypeError, ValueError or AttributeError if it is not an index.
"""


def list_indexed(
    urls: Urls, suffixes: Sequence[str], storage: Storage, parse: Parse, index_name: str = INDEX
) -> Listing:
    """Return the shards that `urls` names, in the order of `list_shards`.

    In and below a folder with an index, these are the shards that the index names, in its order.
    """
    found = find_shards(urls, (*suffixes, "/" + index_name), storage)
    indexed = {
        shard.url.removesuffix(index_name)
        for shard in found
        if shard.url.endswith("/" + index_name)
    }
    shards = {shard.url: shard for shard in found if not shard.url.endswith("/" + index_name)}
    tops = {
        folder for folder in indexed if not any(above in indexed for above in _folders(folder[:-1]))
    }
    by_folder = {
        folder: dict.fromkeys(_shards_of_index(storage, folder, index_name, shards, parse))
        for folder in sorted(tops)
    }
    folder_of = {url: folder for folder, named in by_folder.items() for url in named}
    left = {
        url
        for url in shards
        if url not in folder_of and any(folder in tops for folder in _folders(url))
    }
    if left:
        # Such as the plain files that a writer kept after it compressed them.
        twins = {
            folder + name
            for folder in tops
            for entry in parse(folder_index(storage, folder, index_name))
            for name in entry.sizes
        }
        _log_if_any(
            logging.INFO,
            "these files are not read, since another file of the same shard is",
            left & twins,
        )
        _log_if_any(
            logging.WARNING,
            f"these files are not read, since no {index_name} names them",
            left - twins,
        )
    in_turn = {folder: iter(named) for folder, named in by_folder.items()}
    read = (url for url in shards if url not in left)
    chosen = [shards[next(in_turn[folder_of[url]]) if url in folder_of else url] for url in read]
    if not chosen:
        raise ConfigError(f"there is no shard in {redact(str(urls))}: its {index_name} names none")
    return Listing.of(chosen)


def _log_if_any(level: int, what: str, urls: Collection[str]) -> None:
    if urls:
        shown = ", ".join(map(redact, sorted(urls)[:_SHOWN])) + (
            ", ..." if len(urls) > _SHOWN else ""
        )
        _log.log(level, "%s: %s", what, shown)


def find_entry(shard: Shard, parse: Parse) -> Entry | None:
    """Return what the index in the shard's folder says of it, or None."""
    folder, _, name = within_url(shard.url).rpartition("/")
    is_chain = "::" in shard.url and local_path(shard.url) is None
    return (
        _by_name(shard.storage, folder + "/", parse).get(name) if folder and not is_chain else None
    )


@lru_cache(maxsize=64)
def folder_index(storage: Storage, folder: str, index_name: str = INDEX) -> Any:
    """Return the parsed index of a folder, whose URL ends in "/", or None."""
    data = storage.read_if_exists(folder + index_name)
    with translate_index_errors(folder + index_name):
        return None if data is None else json.loads(data)


@lru_cache(maxsize=64)
def _by_name(storage: Storage, folder: str, parse: Parse) -> dict[str, Entry]:
    index = folder_index(storage, folder)
    with translate_index_errors(folder + INDEX):
        return (
            {} if index is None else {name: entry for entry in parse(index) for name in entry.sizes}
        )


def _folders(url: str) -> Iterator[str]:
    """Yield all folders above, each ending in "/"."""
    end = url.rfind("/")
    while end > 0:
        yield url[: end + 1]
        end = url.rfind("/", 0, end)


def _shards_of_index(
    storage: Storage, folder: str, index_name: str, shards: Mapping[str, FileInfo], parse: Parse
) -> Iterator[str]:
    """Yield the URLs of the shards that the folder's index names."""
    index = folder_index(storage, folder, index_name)
    with translate_index_errors(folder + index_name):
        entries = parse(index)
    for entry in entries:
        there = next((folder + name for name in entry.sizes if folder + name in shards), None)
        if there is None:
            name = next(iter(entry.sizes))
            raise DataError(
                f"the shard is missing, and {index_name} names it: copy it, or build the index "
                "again",
                shard=redact(folder + name),
                offset=0,
            )
        size, expected = shards[there].size, entry.sizes[there.removeprefix(folder)]
        if expected is not None and size != expected:
            reason = (
                f"the shard has {size} bytes, and {expected} by its {index_name}: it is cut off, "
                "or "
                "was written again"
            )
            raise DataError(reason, shard=redact(there), offset=min(size, expected))
        yield there


@contextmanager
def translate_index_errors(url: str) -> Iterator[None]:
    """Raise DataError, which names the index, for the errors of `Parse`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"not a known kind of index: {type(error).__name__}: {error}"
        raise DataError(reason, shard=redact(url), offset=0) from error
