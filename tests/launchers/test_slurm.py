"""bertjax launch slurm with a real Slurm of one node, if it is installed.

Debian and Ubuntu: `apt install slurm-wlm munge`.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
SECONDS = 240

CONFIG = """\
ClusterName=alone
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def wait_for(condition, what: str):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} did not come in {SECONDS} s")


class Slurm:
    """A cluster of this machine, with all files in one folder."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        fields = {"host": host, "user": user, "folder": folder, "cpus": os.cpu_count()}
        (folder / "slurm.conf").write_text(CONFIG.format(ports=ports, **fields))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        munge = ["--socket", "munge.socket", "--pid-file", "munge.pid", "--seed-file", "munge.seed"]
        munge = [word if word.startswith("--") else str(folder / word) for word in munge]
        self.daemons = [
            self._start("munged", "--foreground", "--force", "--key-file", str(key), *munge),
            self._start("slurmctld", "-D", "-c"),
            self._start("slurmd", "-D", "-N", host),
        ]

    def _start(self, *words: str) -> subprocess.Popen:
        with (self.folder / f"{words[0]}.log").open("w") as log:
            return subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, cwd=self.folder
            )

    def call(self, *words: str, **options) -> str:
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60, **options
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self, job: str) -> str:
        return self.call(
            "squeue", "--noheader", "--states=all", "--jobs", job, "--format=%T"
        ).strip()

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture
def slurm(tmp_path):
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        pytest.skip(f"no Slurm on this machine: {', '.join(missing)} not found")
    (tmp_path / "slurm").mkdir()
    cluster = Slurm(tmp_path / "slurm")
    try:
        wait_for(
            lambda: (
                "idle"
                in subprocess.run(
                    ["sinfo", "--noheader", "--format=%T"],
                    env=cluster.environment,
                    capture_output=True,
                    text=True,
                ).stdout
            ),
            "an idle node",
        )
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def launcher(tmp_path, root, command_environment) -> pathlib.Path:
    """The script, in a checkout whose `tools/run` uses the Python of this test."""
    shutil.copytree(root / "bertjax" / "launchers", tmp_path / "bertjax" / "launchers")
    (tmp_path / "tools").mkdir()
    run = tmp_path / "tools" / "run"
    names = [name for name in command_environment if name.startswith("JAX")]
    kept = ["XLA_FLAGS=", *(f"{name}={command_environment[name]!r}" for name in names)]
    path = f"PYTHONPATH={command_environment['PYTHONPATH']!r}"
    settings = " ".join([*kept, path])
    run.write_text(f'#!/bin/sh\nexec env {settings} {sys.executable} -m bertjax "$@"\n')
    run.chmod(0o755)
    return tmp_path / "bertjax" / "launchers" / "slurm"


def test_a_preempted_job_saves_is_requeued_and_resumes(slurm, launcher, tmp_path, root):
    workdir = tmp_path / "run"
    changes = ["data.phases=()", "data.input=('python-docs',)", "data.max_seq_length=32"]
    changes += ["data.batch_size=8", "optimizer.warmup_steps=2", "num_train_steps=100000"]
    changes += ["tokenizer.vocab_size=1024", "model.vocab_size=1024", "log_every=5"]
    command = ["pretrain", "--config", str(root / "configs/bert.py:tiny"), "--workdir", workdir]
    command += [f"--config.{change}" for change in changes]
    output = slurm.call(
        launcher, "--name", "tiny", "--time", "00:30:00", "--", *command, cwd=tmp_path
    )
    job = output.split()[-1]
    metrics = workdir / "metrics.jsonl"

    def steps() -> list[int]:
        text = metrics.read_text() if metrics.exists() else ""
        # The last line may be half written.
        lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
        return [line["step"] for line in lines if "loss" in line]

    wait_for(lambda: len(steps()) > 1, "the first steps")
    slurm.call("scancel", "--signal=TERM", job)
    wait_for(lambda: slurm.state(job) == "PENDING", "the job in the queue again")
    log = (tmp_path / f"tiny-{job}.out").read_text()
    assert "SIGTERM: finishing this step and saving" in log
    assert "stopped and saved" in log
    (saved,) = (int(path.name) for path in (workdir / "checkpoints").iterdir())
    before = [step for step in steps() if step <= saved]
    # Slurm has it wait for two minutes; a node requires a moment to forget that it lost the job.
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+10")
    wait_for(lambda: len(steps()) > len(before) + 1, "further steps")
    slurm.call("scancel", "--signal=TERM", job)
    wait_for(lambda: slurm.state(job) == "PENDING", "the job in the queue a second time")
    slurm.call("scancel", job)
    found = steps()
    assert found == [*range(5, found[-1] + 1, 5)]
    assert found[-1] > saved
