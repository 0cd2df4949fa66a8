"""Real processes that are stopped, killed, or run out of disk space."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import pytest

from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.metric_records import read_metrics


def finished(process, timeout=120):
    """The result of a process that ended successfully, as a dict."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out)


def wait_for_checkpoint(workdir, process):
    while not checkpoint_folder.steps(workdir / "checkpoints"):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def wait_for_output(process):
    """Wait until training prints its first report, after the messages of earlier starts."""
    while not (line := process.stderr.readline()).startswith("step "):
        assert line, process.communicate()[1]


@pytest.fixture(scope="module")
def uninterrupted(start_toy, tmp_path_factory):
    """Final step and fingerprint of an uninterrupted run of 60 steps."""
    workdir = tmp_path_factory.mktemp("uninterrupted")
    return finished(start_toy(workdir, "--steps", 60)) | {"metrics": printed(workdir)}


def printed(workdir):
    return [
        (record["step"], name, record[name])
        for record in read_metrics(workdir)
        for name in ("loss", "held_out/loss")
        if name in record
    ]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_finishes_the_step_and_saves_for_resuming(
    tmp_path, start_toy, uninterrupted, number, code
):
    process = start_toy(tmp_path, "--steps", 60, "--pause", 0.05)
    wait_for_checkpoint(tmp_path, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    stopped_at = json.loads(out)["step"]
    assert 5 <= stopped_at < 60
    assert f"{number.name}: finishing this step and saving; press Ctrl-C again to stop now" in err
    assert checkpoint_folder.steps(tmp_path / "checkpoints")[-1] == stopped_at
    result = finished(start_toy(tmp_path, "--steps", 60))
    assert (result["step"], result["sha256"]) == (60, uninterrupted["sha256"])
    assert printed(tmp_path) == uninterrupted["metrics"]


def test_a_second_ctrl_c_stops_at_once(tmp_path, start_toy):
    process = start_toy(tmp_path, "--steps", 60, "--pause", 20)
    while not (tmp_path / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert "finishing this step" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    # A shell shows 130 for either: the kernel ended it, or its own thread.
    assert process.returncode in (-signal.SIGINT, 130)
    # The step was neither finished nor saved.
    assert not checkpoint_folder.steps(tmp_path / "checkpoints")


def test_a_failed_step_does_not_lose_a_pending_checkpoint(tmp_path, start_toy):
    process = start_toy(tmp_path, "--checkpoint_every", 4, "--poison", 4, 9)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "not finite in steps 5 to 7" in err
    assert "Traceback" not in err
    assert checkpoint_folder.steps(tmp_path / "checkpoints") == [4]
    assert checkpoint_folder.find_defect(tmp_path / "checkpoints" / "4") is None


def test_a_terminal_shows_a_live_line_and_the_cursor_is_restored(tmp_path, start_toy):
    master, slave = pty.openpty()
    process = start_toy(tmp_path, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    seen = b""
    # Reading fails once the last process that writes to the terminal is gone.
    with contextlib.suppress(OSError):
        while True:
            seen += os.read(master, 65536)
    os.close(master)
    process.wait(timeout=60)
    assert process.returncode == 0
    assert b"40/40" in seen
    assert b"tokens/s" in seen
    assert b"held_out/loss" in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")


SMALL_DISK = """
set -e
mount -t tmpfs -o size=5m tmpfs "$1"
dd if=/dev/zero of="$1/filler" bs=1k count=3500 status=none
shift
set +e
"$@" >"$OUT/1.out" 2>"$OUT/1.err"; echo $? >"$OUT/1.code"
rm "$WORKDIR/../filler"
"$@" >"$OUT/2.out" 2>"$OUT/2.err"; echo $? >"$OUT/2.code"
"""


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no small disk can be mounted here")
@pytest.mark.slow
def test_a_full_disk(tmp_path, root, uninterrupted, toy_environment):
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    out.mkdir()
    workdir = disk / "run"
    toy = [sys.executable, "-W", "error", root / "tests" / "train" / "toy_run.py", workdir]
    options = ["--steps", "60", "--checkpoint_every", "1", "--keep", "12"]
    subprocess.run(
        ["unshare", "-rm", "bash", "-c", SMALL_DISK, "bash", disk, *toy, *options],
        env=toy_environment | {"OUT": str(out), "WORKDIR": str(workdir)},
        check=True,
        timeout=120,
    )
    error = (out / "1.err").read_text()
    assert (out / "1.code").read_text() == "1\n"
    assert "error: the disk is full: checkpoint" in error
    assert "the last one is " in error
    assert "Traceback" not in error
    assert (out / "2.code").read_text() == "0\n", (out / "2.err").read_text()
    assert json.loads((out / "2.out").read_text())["sha256"] == uninterrupted["sha256"]
