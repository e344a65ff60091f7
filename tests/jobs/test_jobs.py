"""The demo job, run as users run it: submitted to a cluster, stopped, and resumed on a cluster of
its own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rayingest as ri
from tests.docs.pages import blocks
from tests.support.plain import PlainEnvironment

ROOT = Path(__file__).parents[2]
FINAL = re.compile(
    r"accuracy ([\d.]+) % on held-out digits after (\d+) steps; ([\d.]+)% of the time spent waiting"
)

# A busy machine needs the time; one process makes the runs that all tests of this file look at.
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("jobs")]

EPOCHS = 12
STEPS = EPOCHS * (1438 // 64)


@pytest.fixture(scope="module")
def environment(plain: PlainEnvironment) -> dict[str, str]:
    """A new user's variables, and two that save time.

    Ray Train polls its ranks more often than every 2 s. Ray starts no workers before they are asked
    for: a job in a folder of its own cannot use them.
    """
    return {
        **plain.variables,
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_prestart_worker_first_driver": "0",
    }


def free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for data and runs, with the job's configurations changed to it and to shorter
    intervals.
    """
    folder = tmp_path_factory.mktemp("digits")
    for name in ("digits_cpu.yaml", "digits_held_out.yaml"):
        text = (ROOT / "configs" / name).read_text()
        text = text.replace("runs/digits", str(folder)).replace(
            "configs/digits_held_out", f"{folder}/digits_held_out"
        )
        text = text.replace("validate_every: 100", "validate_every: 50")
        text = text.replace("checkpoint_every: 100", "checkpoint_every: 40")
        (folder / name).write_text(text)
    return folder


@contextmanager
def running_head(
    environment: dict[str, str], wait_until: Callable[..., None]
) -> Iterator[tuple[str, str]]:
    """Run a Ray head with its own ports and folder; yields its address and its dashboard's."""
    port, dashboard, client, agent = free_ports(4)
    folder = Path(
        tempfile.mkdtemp(prefix="ri-head-")
    )  # short: the names of sockets in it have a limit
    command = [
        "ray", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=8",
        "--object-store-memory=300000000", f"--port={port}", f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        "--node-ip-address=127.0.0.1", f"--temp-dir={folder}",
    ]  # fmt: skip
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=folder,
        )
    started = [psutil.Process(process.pid)]

    def answers() -> bool:
        assert process.poll() is None, (folder / "output").read_text()
        try:
            for url in (
                f"{dashboard}/api/version",
                f"{agent}/api/local_raylet_healthz",
            ):  # the agent starts jobs
                urllib.request.urlopen(f"http://127.0.0.1:{url}", timeout=1).close()
            return True
        except urllib.error.HTTPError as error:
            return error.code == 401  # it asks for the token
        except OSError:
            return False

    try:
        wait_until(answers, 120)
        yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
    finally:
        if process.poll() is None:
            started += started[0].children(recursive=True)
            os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(started, timeout=2)
        for one in alive:
            one.kill()
        psutil.wait_procs(alive, timeout=10)
        shutil.rmtree(folder, ignore_errors=True)


def job(place: Path, *arguments: str) -> list[str]:
    config = place / "digits_cpu.yaml"
    return [
        "python",
        "jobs/train_digits.py",
        f"--config={config}",
        f"--folder={place}/runs",
        *arguments,
    ]


def call(command: list[str], environment: dict[str, str], folder: Path = ROOT) -> str:
    """Run a command in a folder, the project's by default; return its output."""
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def steps(run: Path) -> list[dict[str, Any]]:
    """Return what rank 0 logged of each step."""
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir() if "checkpoint_0" in path.name)


def submit_command(dashboard: str) -> str:
    """Return the command by which a page submits the job, with another dashboard's address."""
    page = ROOT / "docs" / "ray_train_and_torchrun.md"
    (command,) = (block.text for block in blocks(page, "bash") if "ray job submit" in block.text)
    assert "http://127.0.0.1:8265" in command
    return command.strip().replace("http://127.0.0.1:8265", dashboard)


@pytest.fixture(scope="module")
def submitted(
    environment: dict[str, str], place: Path, wait_until: Callable[..., None]
) -> dict[str, str]:
    """Outputs of commands on a cluster that asks for the token in the home folder.

    The job of the page "Ranks", which stops after its first checkpoint, and `rayingest top` of this
    user and of one without a token.
    """
    call(["ray", "get-auth-token", "--generate"], environment, place)
    with running_head(environment, wait_until) as (address, dashboard):
        arguments = shlex.join(job(place, "--stop-after=60")[2:])
        job_output = call(["bash", "-c", f"{submit_command(dashboard)} {arguments}"], environment)
        top = ["rayingest", "top", "--address", address, "--times=1", "--every=0.5"]
        own = call(top, environment, place)
        stranger = {**environment, "HOME": str(place)}
        refused = subprocess.run(
            top, check=False, env=stranger, capture_output=True, text=True, timeout=60
        )
    return {"job": job_output, "top": own, "refused": refused.stderr}


@pytest.fixture(scope="module")
def stopped(submitted: dict[str, str], place: Path) -> list[dict[str, Any]]:
    """The steps of the job, submitted to a cluster and stopped after its first checkpoint."""
    assert "succeeded" in submitted["job"]
    assert f"step 50 of {STEPS}" in submitted["job"]
    (run,) = (place / "runs").iterdir()
    return steps(run)


@pytest.fixture(scope="module")
def resumed(environment: dict[str, str], place: Path, stopped: list[dict[str, Any]]) -> str:
    """The output of the same run, resumed on a cluster of its own."""
    return call(job(place, "--resume"), environment)


def test_top_sends_the_token_or_says_what_it_lacks(submitted: dict[str, str]) -> None:
    """On a cluster that asks for authentication, named by its address alone."""
    assert "no loader runs on this cluster" in submitted["top"]
    assert "authentication token, and this user has no token" in submitted["refused"]


def test_a_stopped_run_leaves_its_steps_and_a_whole_checkpoint(
    stopped: list[dict[str, Any]], place: Path
) -> None:
    """They are in the given folder, though the job ran in a copy of the project's."""
    assert [line["step"] for line in stopped] == list(range(1, 61))
    (run,) = (place / "runs").iterdir()
    assert checkpoints(run) == ["checkpoint_00000040"]


def test_a_resumed_run_repeats_what_was_done_behind_its_checkpoint(
    stopped: list[dict[str, Any]], resumed: str, place: Path
) -> None:
    """Weights, optimizer and data equal those of an uninterrupted run: the losses are the same."""
    (run,) = (place / "runs").iterdir()
    assert steps(run)[:60] == stopped
    assert [line["step"] for line in steps(run)] == list(range(1, STEPS + 1))


def test_rank_0_had_its_part_of_every_batch(
    resumed: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across the stop and to the end, its samples are those of a single process."""
    monkeypatch.chdir(ROOT)
    (run,) = (place / "runs").iterdir()
    config = ri.load_config(place / "digits_cpu.yaml")
    seen = [line["samples"] for line in steps(run)]
    with config.dataset().loader(
        **{**config.loader_options(), "workers": 0}, rank=0, world_size=2
    ) as loader:
        for epoch in (0, 1, 2, EPOCHS - 1):
            loader.set_epoch(epoch)
            expected = [batch["__index__"].tolist() for batch in loader]
            assert seen[epoch * len(loader) : (epoch + 1) * len(loader)] == expected


def test_the_job_learns(resumed: str, place: Path) -> None:
    """At least 97 % accuracy; the last line has it, and the share of time waiting."""
    accuracy, step, waiting = FINAL.findall(resumed.splitlines()[-1])[0]
    assert float(accuracy) >= 97.0
    assert int(step) == STEPS
    assert 0.0 <= float(waiting) <= 100.0
    (run,) = (place / "runs").iterdir()
    assert checkpoints(run) == ["checkpoint_00000240", f"checkpoint_{STEPS:08d}"]


def test_a_run_that_cannot_be_is_refused(
    resumed: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run to resume, or one that exists; without a name, `--resume` takes the latest."""
    monkeypatch.syspath_prepend(ROOT / "jobs")
    import train_digits

    (run,) = (place / "runs").iterdir()
    assert train_digits.run_name(run.parent, None, resume=True) == run.name
    with pytest.raises(ri.ConfigError, match="there is no run"):
        train_digits.run_name(run.parent, "none", resume=True)
    with pytest.raises(ri.ConfigError, match="there is no run"):
        train_digits.run_name(run.parent / "none", None, resume=True)
    with pytest.raises(ri.ConfigError, match="exists: --resume it"):
        train_digits.run_name(run.parent, run.name, resume=False)


def test_the_digits_are_written_once(
    resumed: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards of each part, no sample twice or missing; a second call writes nothing."""
    monkeypatch.syspath_prepend(ROOT / "jobs")
    import digits

    names: list[str] = []
    for part, count in (("train", 1438), ("held-out", 359)):
        shards = sorted((place / "data").glob(f"{part}-*.tar"))
        assert len(shards) > 1
        before = len(names)
        for shard in shards:
            with tarfile.open(shard) as tar:
                names += tar.getnames()
        assert len(names) - before == 2 * count
    assert len(set(names)) == len(names)
    assert {path.name for path in place.iterdir()} == {
        "data",
        "runs",
        "digits_cpu.yaml",
        "digits_held_out.yaml",
    }
    marks = [path.stat().st_mtime_ns for path in (place / "data").iterdir()]
    digits.write_shards(place / "data")
    assert [path.stat().st_mtime_ns for path in (place / "data").iterdir()] == marks


def test_a_shift_moves_a_digit_by_one_pixel_at_most() -> None:
    """All nine moves occur, and the middle of the picture stays."""
    from jobs.digits import shift

    image = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    seen = {
        shift({"image": image}, np.random.default_rng(seed))["image"].tobytes()
        for seed in range(100)
    }
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    assert seen == {padded[a : a + 8, b : b + 8].tobytes() for a in range(3) for b in range(3)}
