"""Which shards `urls` names, and in which order."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

import rayingest as ri
from rayingest.errors import ConfigError, DataError
from rayingest.storage.file_info import local_path
from rayingest.storage.files import Storage
from rayingest.storage.listing import Listing, list_shards

SUFFIXES = (".tar", ".tar.gz")


def listed(urls: Any, **kwargs: Any) -> Listing:
    return list_shards(urls, suffixes=SUFFIXES, **kwargs)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for name in [
        "a-0.tar",
        "a-1.tar",
        "a-2.tar",
        "sub/b.TAR",
        "sub/deep/c.tar.gz",
        "README.md",
        "sub/index.json",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


@pytest.fixture
def bucket(shards: Path) -> str:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for path in shards.rglob("*"):
        if path.is_file():
            fs.pipe_file(f"/bucket/{path.relative_to(shards)}", path.read_bytes())
    return "memory://bucket"


ALL = ("a-0.tar", "a-1.tar", "a-2.tar", "sub/b.TAR", "sub/deep/c.tar.gz")


def test_local_folder_gives_files_with_the_suffixes_at_any_depth(shards: Path) -> None:
    """Sizes are the files', marks are their modification times in ns."""
    for url in (str(shards), f"{shards}/", f"file://{shards}"):
        found = listed(url)
        assert found.root == f"{shards}/"
        assert found.paths == ALL
        assert found.sizes == tuple(map(len, ALL))
        assert found.marks == tuple(str((shards / path).stat().st_mtime_ns) for path in ALL)
        assert found.url(3) == f"{shards}/sub/b.TAR"


def test_remote_folder_gives_the_same_shards(bucket: str) -> None:
    """A copy has the same paths and sizes, hence the same fingerprint."""
    for url in (bucket, bucket + "/"):
        found = listed(url)
        assert (found.root, found.paths, found.sizes) == (bucket + "/", ALL, tuple(map(len, ALL)))


@pytest.mark.parametrize(
    "pattern",
    ["a-*.tar", "a-?.tar", "a-{0..2}.tar", "a-{2,0,1}.tar", "{a-0,a-[12]}.tar", "a-[0-9]*"],
)
def test_globs_and_braces_are_sorted_by_url(shards: Path, bucket: str, pattern: str) -> None:
    """Shards of one string are sorted by URL, on every storage."""
    for base in (str(shards), bucket):
        assert listed(f"{base}/{pattern}").paths == ("a-0.tar", "a-1.tar", "a-2.tar")


def test_list_keeps_its_order_and_sorts_inside_each_element(shards: Path, bucket: str) -> None:
    """The user's order counts, the filesystem's does not."""
    for base in (str(shards), bucket):
        found = listed([f"{base}/sub/b.TAR", f"{base}/a-{{0..2}}.tar", f"{base}/sub/deep"])
        assert found.paths == ("sub/b.TAR", "a-0.tar", "a-1.tar", "a-2.tar", "sub/deep/c.tar.gz")


def test_single_file_is_taken_whatever_its_name(shards: Path, bucket: str) -> None:
    """Suffixes apply to folders only; path objects and relative paths work."""
    for base in (str(shards), bucket):
        found = listed(f"{base}/sub/index.json")
        assert (found.root, found.paths) == (f"{base}/sub/", ("index.json",))
    assert listed(shards / "a-0.tar").paths == ("a-0.tar",)
    assert listed(os.path.relpath(shards / "a-0.tar")).root == f"{shards}/"


def test_large_brace_ranges_of_remote_files_cost_one_listing(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is not one call per file."""
    fs = fsspec.filesystem("memory")
    for i in range(300):
        fs.pipe_file(f"/bucket/many/{i:06d}.tar", b"x" * i)
    calls = []
    ask = Storage.on_filesystem
    monkeypatch.setattr(Storage, "on_filesystem", lambda *args: calls.append(args[1]) or ask(*args))
    found = listed(f"{bucket}/many/{{000000..000299}}.tar")
    assert found.sizes == tuple(range(300))
    assert len(calls) == 1


def test_missing_files_of_a_brace_range_are_named(shards: Path, bucket: str) -> None:
    """A gap is an error, never a shorter dataset."""
    for base in (str(shards), bucket):
        with pytest.raises(
            ConfigError, match=r"2 of the 5 names .* match no file: .*/a-3\.tar, .*/a-4\.tar"
        ):
            listed(f"{base}/a-{{0..4}}.tar")
        with pytest.raises(ConfigError, match=r"9 of the 12 names"):
            listed(f"{base}/a-{{0..11}}.tar")
        with pytest.raises(ConfigError, match=r"1 of the 2 names .*z\*\.tar"):
            listed(f"{base}/{{a,z}}*.tar")


def test_empty_match_names_pattern_and_what_is_there(shards: Path, bucket: str) -> None:
    """Holds for a wrong name, glob or folder, and for a folder without shards."""
    (shards / "empty").mkdir()
    (shards / ".hidden").touch()
    likely = {
        "a1.tar": ["a-1.tar"],
        "readme.*": ["README.md"],
        "sup/deep/*.tar": ["sub"],
        "sub/c.tar": ["sub/b.TAR"],
        "nowhere/x.tar": ["a-0.tar", "a-1.tar", "a-2.tar", "empty", "sub"],
        "nowhere/": ["a-0.tar", "a-1.tar", "a-2.tar", "empty", "sub"],
    }
    for base in (str(shards), bucket):
        for pattern, near in likely.items():
            with pytest.raises(ConfigError) as caught:
                listed(f"{base}/{pattern}")
            told, _, nearby = str(caught.value).partition("; names nearby: ")
            assert told.startswith(f"'{base}/{pattern}' matches no file")
            named = [f"{base}/{name}" for name in near if base != bucket or name != "empty"]
            assert nearby.split(", ")[: len(named)] == named, pattern
    with pytest.raises(ConfigError, match=r"matches no file .*\.tar, \.tar\.gz"):
        listed(shards / "empty")
    (shards / "a-3.tar").mkdir()
    with pytest.raises(
        ConfigError, match=r"match no file: .*/a-3\.tar \(of a folder, files that end in \.tar"
    ):
        listed(f"{shards}/a-{{0..3}}.tar")
    with pytest.raises(ConfigError, match="list of URLs is empty"):
        listed([])
    with pytest.raises(ConfigError, match="not a path"):
        listed("")


def test_duplicates_in_a_list_are_refused(shards: Path) -> None:
    """An epoch reads a shard once; overlapping braces of one string are one set."""
    with pytest.raises(ConfigError, match=r"a-1\.tar is twice in the list"):
        listed([f"{shards}/a-1.tar", f"{shards}/a-*.tar"])
    assert listed(f"{shards}/a-{{1,1}}.tar").paths == ("a-1.tar",)


def test_refused_urls_say_why_and_hide_credentials() -> None:
    """Commands and unknown protocols are named."""
    with pytest.raises(ConfigError, match=r"would run a shell command.*allow_pipe=True"):
        listed("pipe:cat /tmp/a.tar")
    with pytest.raises(ConfigError) as caught:
        listed("nosuch://user:hunter2@host/a.tar?sig=hunter2")
    assert "nosuch" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_existing_path_with_pattern_letters_is_itself(tmp_path: Path) -> None:
    """An existing name with braces or brackets is no pattern."""
    (tmp_path / "run{1,2}[x].tar").write_bytes(b"x")
    assert listed(tmp_path / "run{1,2}[x].tar").paths == ("run{1,2}[x].tar",)


def test_two_colons_in_a_local_name_are_no_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for existing files and folders; a bare protocol before them is a chain."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d::1").mkdir()
    for name in ("a::b.jsonl", "d::1/c::zip.jsonl"):
        (tmp_path / name).write_text('{"n": 1}\n')
    names = [
        "a::b.jsonl",
        "./a::b.jsonl",
        tmp_path / "a::b.jsonl",
        f"file://{tmp_path}/a::b.jsonl",
        "./a::?.jsonl",
    ]
    for url in [*names, "d::1", "./d::1/*.jsonl"]:
        with ri.read_json(url).batch(1).loader(workers=0) as loader:
            assert len(list(loader)) == 1
    with ri.read_json(tmp_path).batch(2).loader(workers=0) as loader:
        assert len(list(loader)) == 1
    with ri.read_files("a::b.jsonl").batch(1).loader(workers=0) as loader:
        assert next(iter(loader))["data"] == [b'{"n": 1}\n']
    assert local_path("simplecache::a.jsonl") is None
    assert local_path("zip://a.jsonl::b.zip") is None


def test_links_are_followed_and_loops_end(tmp_path: Path, shards: Path) -> None:
    """Shards behind linked folders are found."""
    (shards / "sub" / "loop").symlink_to(shards)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "linked").symlink_to(shards / "sub")
    found = listed(tmp_path / "other")
    assert f"{tmp_path}/other/linked/deep/c.tar.gz" in [found.url(i) for i in range(len(found))]
    assert listed(shards / "sub").paths[0] == "b.TAR"


def ways_to_name(folder: Path) -> list[Any]:
    """All that mean the shards of the folder, of which `a-1.tar` is one."""
    return [
        folder,
        f"{folder}/*.tar",
        f"{folder}/**",
        f"{folder}/a-{{0..2}}.tar",
        [folder / "a-1.tar"],
    ]


def test_a_link_that_leads_nowhere_is_an_error(shards: Path) -> None:
    """The error names the link and its target; links to other files do not matter."""
    (shards / "a-1.tar").unlink()
    (shards / "a-1.tar").symlink_to("annex/key")
    (shards / "annex").symlink_to(shards / "unmounted")
    (shards / "notes.txt").symlink_to("nowhere")
    for urls in ways_to_name(shards):
        with pytest.raises(ConfigError) as caught:
            listed(urls)
        assert (
            f"{shards}/a-1.tar is a link to {shards}/unmounted/key, which does not exist: fetch"
            in str(caught.value)
        )
    (shards / "unmounted").mkdir()
    (shards / "unmounted" / "key").write_bytes(b"fetched")
    assert listed(shards).sizes[1] == len(b"fetched")


def test_a_link_to_a_folder_that_is_not_there_is_an_error(shards: Path) -> None:
    """Otherwise everything in it would be missing."""
    (shards / "part-2").symlink_to("/unmounted/part-2")
    with pytest.raises(
        ConfigError, match=r"/part-2 is a link to /unmounted/part-2, which does not exist"
    ):
        listed(shards)


@pytest.mark.parametrize("name", ["a-1.tar", "part-2", "notes.txt"])
def test_links_in_a_ring_are_named(shards: Path, name: str) -> None:
    """Their target is unknown, so they are errors."""
    (shards / name).unlink(missing_ok=True)
    (shards / name).symlink_to("ring")
    (shards / "ring").symlink_to(name)
    for urls in ways_to_name(shards)[: 5 if name == "a-1.tar" else 1]:
        with pytest.raises(ConfigError, match=rf"cannot access {shards}/(ring|{name}): "):
            listed(urls)


def test_a_pipe_in_the_place_of_a_shard_is_an_error(shards: Path) -> None:
    """It is not waited for; a pipe without a shard's suffix is ignored."""
    (shards / "a-1.tar").unlink()
    os.mkfifo(shards / "a-1.tar")
    for urls in ways_to_name(shards):
        with pytest.raises(
            ConfigError, match=r"a-1\.tar is a pipe, a socket or a device, and only files"
        ):
            listed(urls)
    (shards / "a-1.tar").rename(shards / "control")
    assert listed(shards).paths == tuple(path for path in ALL if path != "a-1.tar")


def test_a_folder_called_like_a_shard_is_not_left_out_of_a_glob(shards: Path) -> None:
    """It is an error unless the glob matches its content, on every storage."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for name in ("a-1.tar/part.tar", "a-0.tar"):
        fs.pipe_file(f"/bucket/{name}", b"x")
    (shards / "a-1.tar").unlink()
    (shards / "a-1.tar").mkdir()
    (shards / "a-1.tar" / "part.tar").write_bytes(b"x")
    for base in (str(shards), "memory://bucket"):
        for pattern in ("*.tar", "*", "a-{0,1}*"):
            with pytest.raises(
                ConfigError, match=rf"{base}/a-1\.tar is a folder, and a glob takes files only"
            ):
                listed(f"{base}/{pattern}")
        for pattern in ("**/*.tar", "a-{0,1}.tar"):
            assert {"a-0.tar", "a-1.tar/part.tar"} <= set(listed(f"{base}/{pattern}").paths)


def test_too_large_a_brace_range_is_refused_fast() -> None:
    """It is refused before millions of names exist."""
    with pytest.raises(ConfigError, match="names more than"):
        listed("/data/{0..99999999}.tar")


def test_web_urls_list_by_name_with_etags_and_queries(web: Any) -> None:
    """Signed URLs keep their query; the root never includes it."""
    web.files = {f"/d/{i}.tar": bytes(i + 1) for i in range(12)}
    found = listed(f"{web.url}/d/{{0..11}}.tar?sig=a/b")
    assert found.root == f"{web.url}/d/"
    assert sorted(found.sizes) == list(range(1, 13))
    assert all(path.endswith(".tar?sig=a/b") for path in found.paths)
    assert "" not in found.marks
    with pytest.raises(ConfigError) as caught:
        listed(f"{web.url}/d/12.tar?sig=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("urls", ["a.tar", "d/*.tar", "d/", "d/{0..12}.tar"])
def test_a_server_that_does_not_answer_is_not_an_empty_match(urls: str) -> None:
    """The failure is named, after the configured attempts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and not listening
        base = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            DataError, match=r"after 2 attempts.*Cannot connect to host 127\.0\.0\.1"
        ) as caught:
            listed(f"{base}/{urls}", storage=Storage(attempts=2, first_wait=0.0))
    assert caught.value.transient
    assert str(caught.value.shard).startswith(base)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "hunter2"}, "unexpected keyword argument 'key'"),
        ({"password": "hunter2", "bogus": 1}, "unexpected keyword argument 'password'"),
        ({"headers": {"X-Key": 5, "Y": "hunter2"}}, "TypeError"),
        ({"headers": "X-Key: hunter2"}, "Error: "),
    ],
)
def test_an_option_that_a_library_does_not_take_is_not_an_empty_match(
    web: Any, options: Any, said: str
) -> None:
    """The error names the option, at once."""
    web.files = {"/d/a.tar": b"a", "/d/": b'<a href="a.tar">a</a>'}
    storage = Storage(options)
    looks = [
        partial(listed, f"{web.url}/d/{name}", storage=storage)
        for name in ("a.tar", "*.tar", "{a,b}.tar", "")
    ]
    for look in [*looks, lambda: storage.size(f"{web.url}/d/a.tar")]:
        with pytest.raises(ConfigError, match=said) as caught:
            look()
        assert "hunter2" not in str(caught.value)
    assert not web.requests
