"""Commands as shards: only if allowed, whole or an error, with nothing left running."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rayingest as ri
from rayingest.errors import ConfigError, DataError
from rayingest.storage.files import Storage
from rayingest.storage.listing import list_commands, list_shards
from rayingest.storage.pipes import stream_output
from tests.support.streams import Step, rows, write_shards

ALLOWED = Storage(allow_pipe=True, deadline=20.0)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "d", [9, 3, 8])
    return tmp_path / "d"


def steps(urls: str | list[str], **options: object) -> list[Step]:
    data = (
        ri.read_webdataset(urls, **options).select(i="json").map(number).batch(5, partial="short")
    )  # type: ignore[arg-type]
    with data.loader(workers=0) as loader:
        return [rows(batch) for batch in loader]


def number(sample: dict) -> dict:
    return {"i": sample["i"]["i"]}


def test_a_command_gives_the_stream_of_its_file(shards: Path) -> None:
    """Number ranges name several commands, in order; a cached index works too."""
    expected = steps(f"{shards}/*.tar")
    for _ in range(2):
        assert steps(f"pipe:cat {shards}/s-{{0000..0002}}.tar", allow_pipe=True) == expected
    mixed = [f"{shards}/s-0000.tar", f"pipe:cat {shards}/s-0001.tar", f"{shards}/s-0002.tar"]
    assert steps(mixed, allow_pipe=True) == expected


def test_no_command_runs_without_permission(tmp_path: Path) -> None:
    """Listing and reading refuse commands; the error says how to allow them, without secrets."""
    command = f"pipe:touch {tmp_path}/ran; curl -H 'Authorization: Bearer hunter2' https://h/a.tar"
    for use in (
        lambda: steps(command),
        lambda: list(stream_output(Storage(), command)),
        lambda: list_shards(command, suffixes=(".tar",)),
        lambda: ri.read_parquet(command).batch(1).loader(workers=0),
        lambda: ri.read_json([command]).batch(1).loader(workers=0),
    ):
        with pytest.raises(ConfigError, match=r"allow_pipe=True") as caught:
            use()
        assert "hunter2" not in str(caught.value)
        assert "a.tar" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_only_ranges_of_numbers_are_expanded() -> None:
    """All other braces belong to the shell."""
    url = "pipe:for x in {a,b}; do awk '{print $1,$2}' ${HOME}/{08..11}.tar; done"
    names = [found.url for found in list_commands(ALLOWED, url)]
    assert [name[name.index("/") :][:7] for name in names] == [
        "/08.tar",
        "/09.tar",
        "/10.tar",
        "/11.tar",
    ]
    assert all(
        name.startswith("pipe:for x in {a,b}; do awk '{print $1,$2}' ${HOME}/") for name in names
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat {d}/s-0000.tar; exit 3", "ended with status 3: its standard error is empty"),
        ("cat {d}/nope.tar", r"ended with status 1: .*No such file"),
        ("cat {d}/s-0000.tar | head -c 3000", "cut off"),
        ("head -c 5000 {d}/s-0000.tar; kill -9 $$", "cut off|status -9"),
        ("(cat {d}/s-0000.tar; exit 7) | cat", "status 7"),
        ("cat {d}/s-0000.tar {d}/s-0001.tar", "data follow the tar's end marker"),
        ("true", "end marker .* is missing"),
        ("nosuchcommand", "status 127"),
    ],
)
def test_what_is_not_whole_is_an_error(shards: Path, command: str, said: str) -> None:
    """Each status in a pipeline counts, even after a whole tar."""
    with pytest.raises(DataError, match=said) as caught:
        steps("pipe:" + command.replace("{d}", str(shards)), allow_pipe=True)
    assert caught.value.offset is not None
    assert caught.value.shard is not None
    assert caught.value.shard.startswith("pipe:")


def test_the_status_counts_where_the_rest_is_left_unread(shards: Path) -> None:
    """Without `strict`, bytes after the end marker are ignored, but not the status."""
    url = f"pipe:cat {shards}/s-0000.tar; head -c 3000000 /dev/urandom"
    assert sum(map(len, steps(url, allow_pipe=True, strict=False))) == 9
    with pytest.raises(DataError, match="status 3"):
        steps(url + "; exit 3", allow_pipe=True, strict=False)


def test_compressed_output_is_an_error(shards: Path) -> None:
    """The error says how to decompress it."""
    with pytest.raises(ConfigError, match=r"writes gzip: append `\| gzip -dc`"):
        steps(f"pipe:gzip -c {shards}/s-0000.tar", allow_pipe=True)
    assert (
        sum(map(len, steps(f"pipe:gzip -c {shards}/s-0000.tar | gzip -dc", allow_pipe=True))) == 9
    )


def test_other_output_than_was_indexed_is_an_error(shards: Path, tmp_path: Path) -> None:
    """Fewer samples, or more bytes, are errors."""
    write_shards(tmp_path / "larger", [9], side=90)
    shard, first = tmp_path / "s.tar", (shards / "s-0000.tar").read_bytes()
    for other in (shards / "s-0001.tar", tmp_path / "larger" / "s-0000.tar"):
        shard.write_bytes(first)
        with (
            ri.read_webdataset(f"pipe:cat {shard}", allow_pipe=True)
            .batch(1)
            .loader(workers=0) as loader
        ):
            shard.write_bytes(other.read_bytes())
            with pytest.raises(DataError, match="changed since it was indexed") as caught:
                next(iter(loader))
        assert caught.value.offset is not None


def test_a_command_that_hangs_meets_the_deadline(
    wait_until: Callable[..., None], tmp_path: Path
) -> None:
    """The command and all its children are ended."""
    hanging = Storage(allow_pipe=True, deadline=1.5)
    command = f"pipe:sleep 100 & echo $! > {tmp_path}/pid; echo begun; sleep 100"
    begun = time.monotonic()
    with pytest.raises(DataError, match=r"wrote nothing for 1\.5 s") as caught:
        list(stream_output(hanging, command))
    assert time.monotonic() - begun < 10
    assert caught.value.offset == len("begun\n")
    assert caught.value.transient
    wait_until(lambda: not _is_running(int((tmp_path / "pid").read_text())))
    with pytest.raises(DataError, match="has not ended"):
        list(stream_output(hanging, "pipe:exec >&-; sleep 100"))


def test_nothing_is_left_of_a_reading_that_is_given_up(
    wait_until: Callable[..., None], tmp_path: Path
) -> None:
    """No process and no open file remain."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    chunks = stream_output(ALLOWED, f"pipe:echo $$ > {tmp_path}/pid; cat /dev/zero")
    assert next(chunks)[:1] == b"\0"
    assert _is_running(int((tmp_path / "pid").read_text()))
    chunks.close()
    wait_until(lambda: not _is_running(int((tmp_path / "pid").read_text())))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_command_gets_no_input_and_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its standard error is shown without its arguments and without secret variables."""
    assert list(stream_output(ALLOWED, "pipe:cat")) == []
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    said = "try $MY_TOKEN hunter3 https://u:hunter4@h/?x=hunter5"
    command = f"pipe:PASSWORD=hunter3 sh -c 'echo {said} >&2; exit 1'"
    with pytest.raises(DataError, match=r"status 1: .*\*\*\*") as caught:
        list(stream_output(ALLOWED, command))
    assert "hunter" not in str(caught.value)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
