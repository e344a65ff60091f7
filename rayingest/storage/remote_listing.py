"""List files of any fsspec storage by name, glob and folder, in as few calls as the storage allows.

Many names in one folder are looked up in one listing of it. What a listing does not report (sizes
on web servers) is asked for file by file, several at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rayingest.errors import ConfigError, DataError, IngestError
from rayingest.storage.failures import real_error
from rayingest.storage.file_info import (
    FileInfo,
    closest_names,
    common_prefix,
    ends_in,
    is_listed,
    is_matched,
    refuse_lost_folders,
)
from rayingest.storage.files import Storage
from rayingest.storage.filesystems import mark_of
from rayingest.storage.redact import redact

_AT_ONCE = 16
_WORTH_A_LISTING = 8

Infos = dict[str, dict[str, Any]]
"""fsspec's info of files, by their names in the filesystem."""


@dataclass(frozen=True)
class _Form:
    """Convert between URLs and the filesystem's own names.

    URL = before + name[len(cut):] + after.
    """

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
    """Return for each name its file, or the files of its folder; [] if it does not exist."""
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
    """Return the files that match; `refuse_lost_folders` checks the folders that match."""
    form = _Form.of(storage, url)
    infos: Infos = storage.on_filesystem(
        url, lambda fs, name: _fresh(fs).glob(name, detail=True), "list"
    )
    pattern = form.name(url)
    infos = {name: info for name, info in infos.items() if is_matched(name, pattern)}
    files = _files(infos)
    folders = (form.url(name) for name in infos if name not in files)
    refuse_lost_folders(folders, [form.url(name) for name in infos], suffixes)
    return list(_with_sizes(storage, form, files).values())


def suggest_names(storage: Storage, url: str, suffixes: Sequence[str]) -> list[str]:
    """Return a few names in the nearest existing folder, similar ones first.

    [] if the storage cannot list. DataError if it does not answer, since then it is unknown what is
    missing.
    """
    form = _Form.of(storage, url)
    folder, wanted = form.name(url), ""
    try:
        while not (infos := _list_folder(storage, url, folder)):
            above = form.fs._parent(folder)
            if above == folder or (
                wanted and _is_web(form.fs)
            ):  # a web page above is not the file's folder
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
    folder = form.name(url)
    matching = {
        name: info
        for name, info in _files(infos).items()
        if ends_in(name, suffixes) and is_listed(name, folder)
    }
    return list(_with_sizes(storage, form, matching).values())


def _look_up(storage: Storage, form: _Form, names: dict[str, str]) -> Infos:
    """Return the infos of the names, from one listing per folder."""
    folders = {form.fs._parent(name): url for url, name in names.items()}
    wanted = set(names.values())
    infos: Infos = {}
    for folder, url in folders.items():
        listing = _list_folder(storage, url, folder)
        infos |= {name: info for name, info in listing.items() if name in wanted}
    return infos


def _ask_each(storage: Storage, form: _Form, names: Iterable[str]) -> Infos:
    def ask(name: str) -> tuple[str, dict[str, Any] | None]:
        return name, storage.on_filesystem(form.url(name), lambda fs, _: _info(fs, name), "stat")

    with ThreadPoolExecutor(_AT_ONCE, "rayingest-list") as pool:
        return {name: info for name, info in pool.map(ask, names) if info is not None}


def _with_sizes(storage: Storage, form: _Form, infos: Infos) -> dict[str, FileInfo]:
    unknown = [name for name, info in infos.items() if info.get("size") is None]
    infos = infos | (_ask_each(storage, form, unknown) if unknown else {})
    found = {}
    for name, info in infos.items():
        url = form.url(name)
        if info.get("size") is None:
            raise ConfigError(
                f"the server of {redact(url)} does not report the file's size, which reading by "
                "ranges needs: copy the file to other storage"
            )
        found[name] = FileInfo(url, int(info["size"]), mark_of(info))
    return found


def _names_below(fs: Any, folder: str) -> Infos:
    try:
        return dict(_fresh(fs).find(folder, detail=True))
    except FileNotFoundError as error:  # such as a bucket that does not exist
        if real_error(error) is not error:
            raise
        return {}


def _list_folder(storage: Storage, url: str, folder: str) -> Infos:
    """Return the infos of what is in a folder of the URL's filesystem; {} if it does not exist."""
    return storage.on_filesystem(url, lambda fs, _: _names_in(fs, folder), "list")


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
    """Return the filesystem without its cached listings: shards may have been written since."""
    fs.invalidate_cache(None if name is None else fs._parent(name))
    return fs


def _files(infos: Infos) -> Infos:
    return {name: info for name, info in infos.items() if info.get("type") != "directory"}


def _is_web(fs: Any) -> bool:
    return "http" in fs.protocol
