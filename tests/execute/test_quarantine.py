"""The quarantine lists each bad sample once, without credentials, and ends a run with too many."""

from __future__ import annotations

import json
import logging
import resource
from pathlib import Path
from typing import Any

import pytest

from rayingest.errors import ConfigError, DataError
from rayingest.execute.quarantine import Quarantine


def bad(*ordinals: int, reason: str = "no image") -> list[DataError]:
    """Return an error for each of these samples."""
    return [
        DataError(reason, shard="s3://b/a.tar", offset=10 * i, sample=i, key=f"k{i}")
        for i in ordinals
    ]


def made(folder: Path, max_errors: Any = 1.0, **options: Any) -> Quarantine:
    """Make a quarantine of rank 0."""
    return Quarantine(folder, "data-rank0", max_errors, options)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the only file."""
    return [json.loads(line) for line in (folder / "data-rank0.jsonl").read_text().splitlines()]


def test_each_bad_sample_is_listed_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it comes. Rows with replacements are counted each time; a later run appends."""
    first = made(tmp_path / "new" / "folder")
    first.admit(8, [])
    assert not first.path.exists()
    with caplog.at_level(logging.WARNING, "rayingest"):
        first.admit(8, bad(3, 5))
        first.admit(8, bad(5, 6))
    assert first.counts == {"samples_bad": 3, "replacements": 4}
    assert [line["sample"] for line in lines(first.path.parent)] == [3, 5, 6]
    assert lines(first.path.parent)[0] == {
        "shard": "s3://b/a.tar",
        "offset": 30,
        "key": "k3",
        "sample": 3,
        "error": "no image",
    }
    assert len(caplog.records) == 1
    assert str(first.path) in caplog.text
    made(first.path.parent).admit(8, bad(3))
    assert [line["sample"] for line in lines(first.path.parent)] == [3, 5, 6, 3]


def test_no_credential_gets_into_file_or_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one of a URL that an error quotes, nor one of the storage options."""
    quarantine = made(tmp_path, token="hunter2hunter2")
    quarantine.admit(
        1, bad(0, reason="GET https://u:pw@host/x?sig=abcdef failed with hunter2hunter2")
    )
    for text in (quarantine.path.read_text(), caplog.text):
        assert "https://host/x?sig=***" in text
        assert not any(secret in text for secret in ("pw@", "abcdef", "hunter2"))


def test_a_count_ends_the_run_at_the_next_bad_sample(tmp_path: Path) -> None:
    """The error has the figures and the last sample; every later batch raises it, too."""
    quarantine = made(tmp_path, 2)
    quarantine.admit(8, bad(1, 2))
    quarantine.admit(8, bad(1, 2))
    with pytest.raises(
        DataError, match=r"3 bad samples.* 5 of 24 rows.*max_errors=2.*data-rank0.jsonl.*no im"
    ) as end:
        quarantine.admit(8, bad(3))
    assert (end.value.sample, end.value.key, end.value.offset) == (3, "k3", 30)
    with pytest.raises(DataError) as again:
        quarantine.admit(8, [])
    assert again.value is end.value
    assert [line["sample"] for line in lines(tmp_path)] == [1, 2, 3]


def test_max_errors_0_allows_no_bad_sample(tmp_path: Path) -> None:
    """The first one ends the run, and is listed."""
    with pytest.raises(DataError, match="1 bad samples"):
        made(tmp_path, 0).admit(8, bad(1))
    assert len(lines(tmp_path)) == 1


def test_a_share_counts_at_least_a_thousand_rows(tmp_path: Path) -> None:
    """A few bad samples at the start end no run.

    Repeats of a bad sample count, since each costs a row.
    """
    quarantine = made(tmp_path, 0.01)
    quarantine.admit(100, bad(*range(10)))
    with pytest.raises(DataError, match="11 of 200 rows"):
        quarantine.admit(100, bad(0))
    quarantine = made(tmp_path, 0.01)
    for _ in range(50):
        quarantine.admit(100, [])
    quarantine.admit(100, bad(*range(51)))
    with pytest.raises(DataError, match="60 of 5200 rows"):
        quarantine.admit(100, bad(*range(9)))


def test_by_default_one_in_twenty_may_be_bad(tmp_path: Path) -> None:
    """Only `max_errors=1.0` skips without a limit."""
    quarantine = made(tmp_path, None)
    quarantine.admit(100, bad(*range(50)))
    with pytest.raises(DataError, match=r"max_errors=0.05"):
        quarantine.admit(100, bad(50))
    made(tmp_path, 1.0).admit(10_000, bad(*range(10_000)))


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """Before any work is done."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        made(tmp_path / "file" / "x")


def test_a_list_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    """If the folder is gone or the disk is full, no sample counts that is not listed, and writing
    can resume.
    """
    folder = tmp_path / "q"
    quarantine = made(folder)
    folder.rmdir()
    with pytest.raises(
        ConfigError,
        match=r"listed in .*data-rank0.jsonl: No such file.*; "
        "make the file writable, or give another",
    ):
        quarantine.admit(8, bad(1))
    folder.mkdir()
    quarantine.path.symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="No space left on device"):
        quarantine.admit(8, bad(1))
    assert quarantine.counts == {"samples_bad": 0, "replacements": 0}
    quarantine.path.unlink()
    quarantine.admit(8, bad(1, 1))
    assert quarantine.counts == {"samples_bad": 1, "replacements": 2}
    assert [line["sample"] for line in lines(folder)] == [1]


def test_the_default_is_in_the_users_cache_folder(cache_home: Path) -> None:
    """Beside the indexes."""
    assert (
        Quarantine(None, "a", None, {}).path == cache_home / "rayingest" / "quarantine" / "a.jsonl"
    )


@pytest.mark.parametrize(
    "left", [b"", b'{"shard": "s3:', b'{"sample": 3}\n', b'{"sample": 3}\n{"sha\xc3']
)
def test_an_unfinished_line_is_removed(tmp_path: Path, left: bytes) -> None:
    """A process can end in the middle of a line, which would spoil the next one."""
    (tmp_path / "data-rank0.jsonl").write_bytes(left)
    made(tmp_path).admit(8, bad(5))
    assert [line["sample"] for line in lines(tmp_path)] == [3, 5][b"}" not in left :]


def test_samples_that_cannot_all_be_written_are_not_written(tmp_path: Path) -> None:
    """On a full disk, none of a batch's samples are listed; all of them are once there is room
    again.
    """
    quarantine = made(tmp_path)
    quarantine.admit(8, bad(1))
    before = quarantine.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (int(2.5 * len(before)), limits[1])
    )  # the second line of two is cut
    try:
        with pytest.raises(ConfigError, match="cannot be listed"):
            quarantine.admit(8, bad(2, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert quarantine.path.read_bytes() == before
    assert quarantine.counts == {"samples_bad": 1, "replacements": 1}
    quarantine.admit(8, bad(2, 3))
    assert [line["sample"] for line in lines(tmp_path)] == [1, 2, 3]
