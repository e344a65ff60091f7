"""Files of any fsspec storage by name, glob and folder, with as few calls as the storage allows.

Many names of one folder are looked up in one listing of it. What a listing leaves unsaid (sizes on web servers) is
asked file by file, several at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.storage.failures import real_error
from rayingest.storage.files import Storage
from rayingest.storage.listing import (
    FileInfo,
    closest_names,
    common_prefix,
    ends_in,
    mark_of,
    refuse_lost_folders,
)
from rayingest.storage.redact import redact

_AT_ONCE = 16
_WORTH_A_LISTING = 8

Infos = dict[str, dict[str, Any]]
"""What fsspec tells of files, by their names in the filesystem."""


@dataclass(frozen=True)
class _Form:
    """How URLs and a filesystem's own names belong together: URL = before + name[len(cut):] + after."""

    fs: Any
    before: str
    cut: str
    after: str

    @classmethod
    def of(cls, storage: Storage, url: str) -> _Form:
        fs, name = storage.filesystem(url)
        parts = url.split("::")
        first = next((i for i, part in enumerate(parts) if "://" in part), len(parts) - 1)
        body, after = (
            "::".join(parts[: first + 1]).rstrip("/"),
            "".join("::" + part for part in parts[first + 1 :]),
        )
        name = name.rstrip("/")
        shared = len(common_prefix(body[::-1], name[::-1]))
        return cls(fs, body[: len(body) - shared], name[: len(name) - shared], after)

    def url(self, name: str) -> str:
        if name.startswith(self.cut):
            return self.before + name[len(self.cut) :] + self.after
        return str(self.fs.unstrip_protocol(name)) + self.after

    def name(self, url: str) -> str:
        body = url[: len(url) - len(self.after)]
        if body.startswith(self.before):
            return (self.cut + body[len(self.before) :]).rstrip("/")
        return str(self.fs._strip_protocol(body)).rstrip("/")


def list_urls(
    storage: Storage, urls: Sequence[str], suffixes: Sequence[str]
) -> dict[str, list[FileInfo]]:
    """For each name its file, or the files of its folder; an empty list where there is neither."""
    if not urls:
        return {}
    form = _Form.of(storage, urls[0])
    found = {url: _folder(storage, form, url, suffixes) for url in urls if url.endswith("/")}
    names = {url: form.name(url) for url in urls if url not in found}
    if len(names) > _WORTH_A_LISTING and not _is_web(form.fs):
        infos = _look_up(storage, form, names)
    else:
        infos = _ask_each(storage, form, names.values())
    files = _with_sizes(
        storage, form, {n: i for n, i in infos.items() if i.get("type") != "directory"}
    )
    for url, name in names.items():
        info = infos.get(name)
        if info is None:
            found[url] = []
        elif info.get("type") == "directory":
            found[url] = _folder(storage, form, url, suffixes)
        else:
            found[url] = [files[name]]
    return found


def list_glob(storage: Storage, url: str, suffixes: Sequence[str]) -> list[FileInfo]:
    """Files that match; folders that match are left out, as far as `refuse_lost_folders` lets them."""
    form = _Form.of(storage, url)
    infos: Infos = storage.on_filesystem(
        url, lambda fs, name: _fresh(fs).glob(name, detail=True), "list"
    )
    files = _files(infos)
    folders = (form.url(name) for name in infos if name not in files)
    refuse_lost_folders(folders, [form.url(name) for name in infos], suffixes)
    return list(_with_sizes(storage, form, files).values())


def suggest_names(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """A few names in the nearest folder that exists, those like the missing one if there are any.

    None where storage does not tell. DataError where it does not answer: then nobody knows what is missing.
    """
    form = _Form.of(storage, url)
    folder, wanted = form.name(url), ""
    try:
        while not (
            infos := storage.on_filesystem(url, lambda fs, _: _names_in(fs, folder), "list")  # noqa: B023
        ):
            above = form.fs._parent(folder)
            if above == folder or (
                wanted and _is_web(form.fs)
            ):  # a web page further up is no folder of this file
                return []
            folder, wanted = above, folder.rpartition("/")[2]
    except (IngestError, NotImplementedError) as error:
        if isinstance(error, DataError) and error.transient:
            raise
        return []
    urls = {name.rpartition("/")[2]: form.url(name) for name in infos}
    return [redact(urls[name]) for name in closest_names(wanted, urls, suffixes)]


def _folder(storage: Storage, form: _Form, url: str, suffixes: Sequence[str]) -> list[FileInfo]:
    infos: Infos = storage.on_filesystem(url, _names_below, "list")
    matching = {name: info for name, info in _files(infos).items() if ends_in(name, suffixes)}
    return list(_with_sizes(storage, form, matching).values())


def _look_up(storage: Storage, form: _Form, names: dict[str, str]) -> Infos:
    """What one listing of each folder tells of the names."""
    folders = {form.fs._parent(name): url for url, name in names.items()}
    wanted = set(names.values())
    infos: Infos = {}
    for folder, url in folders.items():
        listed = storage.on_filesystem(
            url,
            lambda fs, _, folder=folder: _names_in(fs, folder),  # type: ignore[misc]
            "list",
        )
        infos |= {name: info for name, info in listed.items() if name in wanted}
    return infos


def _ask_each(storage: Storage, form: _Form, names: Iterable[str]) -> Infos:
    def ask(name: str) -> tuple[str, dict[str, Any] | None]:
        return name, storage.on_filesystem(form.url(name), lambda fs, _: _info(fs, name), "stat")

    with ThreadPoolExecutor(_AT_ONCE, "rayingest-list") as pool:
        return {name: info for name, info in pool.map(ask, names) if info is not None}


def _with_sizes(storage: Storage, form: _Form, infos: Infos) -> dict[str, FileInfo]:
    unsaid = [name for name, info in infos.items() if info.get("size") is None]
    infos = infos | (_ask_each(storage, form, unsaid) if unsaid else {})
    found = {}
    for name, info in infos.items():
        url = form.url(name)
        if info.get("size") is None:
            raise ConfigError(
                f"{redact(url)}: the server does not tell the file's size, which reading by "
                "ranges needs"
            )
        found[name] = FileInfo(url, int(info["size"]), mark_of(info))
    return found


def _names_below(fs: Any, folder: str) -> Infos:
    try:
        return dict(_fresh(fs).find(folder, detail=True))
    except FileNotFoundError as error:  # as of a bucket that there is not
        if real_error(error) is not error:
            raise
        return {}


def _names_in(fs: Any, folder: str) -> Infos:
    try:
        return {str(info["name"]).rstrip("/"): info for info in _fresh(fs).ls(folder, detail=True)}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _info(fs: Any, name: str) -> dict[str, Any] | None:
    try:
        return dict(_fresh(fs, name).info(name))
    except FileNotFoundError as error:
        if real_error(error) is not error:
            raise
        return None


def _fresh(fs: Any, name: str | None = None) -> Any:
    """The filesystem without what it remembers of earlier listings: shards may have been written since."""
    fs.invalidate_cache(None if name is None else fs._parent(name))
    return fs


def _files(infos: Infos) -> Infos:
    return {name: info for name, info in infos.items() if info.get("type") != "directory"}


def _is_web(fs: Any) -> bool:
    return "http" in fs.protocol
