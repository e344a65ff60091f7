"""Reading bytes: exact, retried, bounded, and with errors that name the file."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rayingest.errors import ConfigError, DataError
from rayingest.storage import files
from rayingest.storage.files import Storage
from rayingest.storage.listing import find_shards

DATA = bytes(range(256)) * 40


class Unsteady(MemoryFileSystem):
    """Storage that fails as often as it is told, or does not answer until it is allowed to."""

    protocol = "unsteady"
    failures: ClassVar[list[BaseException]] = []
    answer = threading.Event()
    calls = 0

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        type(self).calls += 1
        if self.failures:
            raise self.failures.pop(0)
        self.answer.wait()
        return MemoryFileSystem().cat_file("/" + path.rpartition("/")[2], start=start, end=end)


@pytest.fixture
def unsteady() -> Iterator[type[Unsteady]]:
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    MemoryFileSystem().pipe_file("/x", DATA)
    Unsteady.calls, Unsteady.failures = 0, []
    Unsteady.answer.set()
    yield Unsteady
    Unsteady.answer.set()


@pytest.fixture(params=["local", "memory", "web"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        (tmp_path / "x").write_bytes(DATA)
        return str(tmp_path / "x")
    if request.param == "memory":
        MemoryFileSystem().pipe_file("/files/x", DATA)
        return "memory://files/x"
    server = request.getfixturevalue("web")
    server.files["/x"] = DATA
    return f"{server.url}/x"


def test_reads_are_exact_everywhere(url: str) -> None:
    """Ranges, whole files, sizes and open files agree on every storage, after pickling too."""
    storage = pickle.loads(pickle.dumps(Storage()))
    assert storage.size(url) == len(DATA)
    assert storage.read_all(url) == DATA
    assert storage.read_range(url, 3, 700) == DATA[3:700]
    assert storage.read_ranges(url, [(0, 5), (9, 9), (100, len(DATA))], len(DATA)) == [
        DATA[:5],
        b"",
        DATA[100:],
    ]
    for buffer in (None, 0, 100):
        with storage.open(url, buffer=buffer) as file:
            assert file.read(10) == DATA[:10]
            assert file.seek(-6, 2) == len(DATA) - 6
            assert file.read() == DATA[-6:]
            file.seek(1000)
            assert file.read(300) == DATA[1000:1300]


def test_short_reads_and_changed_sizes_are_data_errors(url: str) -> None:
    """A read never returns fewer bytes than requested."""
    with pytest.raises(DataError, match=r"bytes were returned, .* were requested") as caught:
        Storage().read_range(url, len(DATA) - 5, len(DATA) + 1)
    assert caught.value.shard == url
    assert caught.value.offset == len(DATA) - 5
    assert not caught.value.transient
    with pytest.raises(
        DataError, match=rf"changed since it was indexed: it had 7 bytes then, {len(DATA)} now"
    ):
        Storage().read_ranges(url, [(0, 5)], 7)


def test_missing_file_is_an_error_at_once(url: str) -> None:
    """A retry cannot help."""
    storage = Storage(first_wait=60.0)
    for operation in (storage.size, storage.read_all, storage.open):
        with pytest.raises(DataError, match="does not exist") as caught:
            operation(url + ".not")
        assert not caught.value.transient


def test_a_server_that_fails_is_not_a_missing_file(web: Any) -> None:
    """fsspec reports it as missing, and it would then be skipped as bad data."""
    web.files = {"/a.tar": DATA}
    web.down = 503
    with pytest.raises(DataError, match="503") as caught:
        Storage(attempts=2, first_wait=0.0).size(f"{web.url}/a.tar")
    assert caught.value.transient
    web.down = 403
    with pytest.raises(ConfigError, match="403"):
        Storage(first_wait=60.0).size(f"{web.url}/a.tar")


def test_what_the_library_refuses_to_ask_is_not_a_missing_file(web: Any) -> None:
    """Two passwords at once are refused in the library's words, without either."""
    web.files = {"/a.tar": DATA}
    storage = Storage({"headers": {"Authorization": "Bearer SECRETSECRET"}}, first_wait=60.0)
    for ask in (storage.size, storage.read_all, lambda url: find_shards(url, [".tar"], storage)):
        with pytest.raises(ConfigError, match="Cannot combine AUTHORIZATION header") as caught:
            ask(web.url.replace("//", "//me:hunter2@") + "/a.tar")
        assert not [secret for secret in ("SECRET", "hunter2") if secret in str(caught.value)]


def test_transient_failures_are_tried_again(unsteady: type[Unsteady]) -> None:
    """Two failures are followed by the answer."""
    unsteady.failures = [OSError("reset"), TimeoutError("slow")]
    assert Storage(first_wait=0.0).read_range("unsteady://x", 0, 4) == DATA[:4]
    assert unsteady.calls == 3


def test_lasting_failures_end_in_an_error_without_credentials(unsteady: type[Unsteady]) -> None:
    """After the configured attempts, the error has the cause and no secret."""
    unsteady.failures = [
        OSError("GET https://u:hunter2@h/x?sig=hunter2 with SECRETSECRET") for _ in range(9)
    ]
    storage = Storage({"secret": "SECRETSECRET"}, attempts=3, first_wait=0.0)
    with pytest.raises(DataError, match=r"GET https://h/x\?sig=\*\*\*") as caught:
        storage.read_all("unsteady://x")
    assert unsteady.calls == 3
    assert "hunter2" not in str(caught.value) + repr(storage)
    assert "SECRET" not in str(caught.value) + repr(storage)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert caught.value.transient


def test_refused_access_is_a_config_error_at_once(unsteady: type[Unsteady]) -> None:
    """Only the user can change permissions."""
    unsteady.failures = [PermissionError("Forbidden"), OSError()]
    with pytest.raises(ConfigError, match="cannot read unsteady://x: PermissionError: Forbidden"):
        Storage(first_wait=60.0).read_all("unsteady://x")
    assert unsteady.calls == 1


def test_options_that_the_library_cannot_work_with_are_config_errors(
    unsteady: type[Unsteady],
) -> None:
    """They fail at once, whatever the library raises."""
    for error in (ValueError("both SECRETSECRET"), TypeError("no"), NotImplementedError("none")):
        unsteady.failures = [error]
        with pytest.raises(
            ConfigError, match=rf"cannot read unsteady://x: {type(error).__name__}: "
        ) as caught:
            Storage({"secret": "SECRETSECRET"}, first_wait=60.0).read_all("unsteady://x")
        assert "SECRET" not in str(caught.value)


def test_a_storage_that_does_not_answer_meets_the_deadline(unsteady: type[Unsteady]) -> None:
    """The wait is bounded even if the library would wait for ever."""
    unsteady.answer.clear()
    with pytest.raises(DataError, match="no answer within") as caught:
        Storage(first_wait=0.0, deadline=0.1).read_all("unsteady://x")
    assert caught.value.transient
    assert unsteady.calls <= 3


def test_a_local_disk_that_does_not_answer_meets_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network filesystem may hang; each try's thread is abandoned."""
    path = tmp_path / "x"
    path.write_bytes(DATA)
    storage, answer = Storage(first_wait=0.0, deadline=0.1), threading.Event()
    monkeypatch.setattr(files, "_open_local", lambda *args, **kwargs: answer.wait())
    monkeypatch.setattr("os.stat", lambda *args, **kwargs: answer.wait())
    for operation in (
        storage.open,
        storage.read_all,
        storage.size,
        lambda url: storage.read_range(url, 0, 9),
    ):
        with pytest.raises(DataError, match="no answer within") as caught:
            operation(str(path))
        assert caught.value.transient
    answer.set()


def test_threads_that_wait_for_storage_serve_again_and_end(tmp_path: Path, wait_until: Any) -> None:
    """There is one thread per waiting read, none once idle; holds after a fork."""

    def threads() -> int:
        return sum(thread.name == "rayingest-storage" for thread in threading.enumerate())

    wait_until(lambda: not threads())
    (tmp_path / "x").write_bytes(DATA)
    storage = Storage()
    for _ in range(20):
        storage.read_all(str(tmp_path / "x"))
    assert threads() == 1
    pid = os.fork()
    if not pid:
        os._exit(storage.read_all(str(tmp_path / "x")) != DATA)
    assert os.waitpid(pid, 0)[1] == 0
    wait_until(lambda: not threads())


@pytest.mark.parametrize(
    ("make", "words"),
    [(os.mkfifo, "a pipe, a socket or a device"), (os.mkdir, "it is a folder")],
)
def test_what_is_no_file_is_an_error_at_once(tmp_path: Path, make: Any, words: str) -> None:
    """A pipe is not waited for."""
    make(tmp_path / "x")
    storage = Storage(first_wait=60.0)
    for operation in (storage.open, storage.read_all, lambda url: storage.read_range(url, 0, 9)):
        with pytest.raises(DataError, match=words) as caught:
            operation(str(tmp_path / "x"))
        assert not caught.value.transient


def test_web_failures_follow_their_status(web: Any) -> None:
    """A busy server is retried, a refusing one is not; query values stay hidden."""
    web.files["/x"] = DATA
    web.failures = [503, 429]
    assert Storage(first_wait=0.0).read_range(f"{web.url}/x", 0, 4) == DATA[:4]
    web.failures, web.requests = [403], []
    with pytest.raises(ConfigError, match="403") as caught:
        Storage(first_wait=60.0).read_range(f"{web.url}/x?sig=hunter2", 0, 4)
    assert len(web.requests) == 1
    assert "hunter2" not in str(caught.value)


def test_the_size_of_a_remote_shard_is_asked_once_for_many_reads(web: Any) -> None:
    """A block costs one request, not two."""
    web.files["/x"] = DATA
    storage = Storage()
    for begin in range(5):
        storage.read_ranges(f"{web.url}/x", [(begin, begin + 9)], len(DATA))
    assert [request.split()[0] for request in web.requests] == ["HEAD"] + ["GET"] * 5
