"""The scripts of bertjax launch, with stubs of cluster programs that record their calls."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from bertjax.commands import launch
from bertjax.commands.launch import SCRIPTS
from bertjax.errors import TemporaryError

PROGRAMS = ("gcloud", "kubectl", "sbatch", "scontrol", "srun", "ssh", "xpk", "sleep")
COMMAND = ["pretrain", "--config", "configs/bert.py:tiny", "--workdir", "/shared/it's a run"]

# Records its call; prints the output of the first matching reply and exits with its status, else 0.
# The lock is held until exit: programs that run at the same time must not take the same reply.
STUB = """\
import fcntl, json, os, pathlib, sys
home = pathlib.Path(os.environ["STUBS"])
lock = open(home / "lock", "w")
name = pathlib.Path(sys.argv[0]).name
piped = "" if sys.stdin.isatty() or name == "ssh" else sys.stdin.read()
fcntl.flock(lock, fcntl.LOCK_EX)
with open(home / "calls", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
(home / f"{name}.stdin").write_text(piped)
replies = home / "replies.json"
known = json.loads(replies.read_text())
for reply in known:
    if all(part in " ".join([name, *sys.argv[1:]]) for part in reply[0]):
        known.remove(reply)
        replies.write_text(json.dumps(known))
        print(reply[1], end="")
        sys.exit(reply[2])
"""


class Stubs:
    """Stub programs in a folder at the start of PATH, and their recorded calls."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path):
        self.folder, self.root = folder, root
        (folder / "bin").mkdir()
        (folder / "calls").touch()
        self.replies()
        for name in PROGRAMS:
            path = folder / "bin" / name
            path.write_text(f"#!{sys.executable} -S\n{STUB}")
            path.chmod(0o755)

    def replies(self, *replies: tuple) -> None:
        """Sets replies (texts in the call, output, exit status), each used once, in order."""
        (self.folder / "replies.json").write_text(json.dumps(replies))

    def launch(self, name: str, *words: str) -> subprocess.CompletedProcess:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", self.root / "bertjax" / "launchers" / name, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={"PATH": path, "HOME": "/nonexistent", "STUBS": str(self.folder)},
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def stdin(self, name: str) -> str:
        return (self.folder / f"{name}.stdin").read_text()


@pytest.fixture
def stubs(tmp_path, root):
    return Stubs(tmp_path, root)


def test_sweep_emit_supports_every_launcher(root):
    scripts = {
        path.name for path in (root / "bertjax" / "launchers").iterdir() if os.access(path, os.X_OK)
    }
    assert scripts == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_examples_of_help_run_and_all_options_are_documented(stubs, name):
    helped = stubs.launch(name, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    examples = re.findall(rf"^  bertjax launch {name} ((?:.*\\\n)*.*)", helped.stdout, re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.replace("\\\n", " "))
        place = words.index("--")
        made = stubs.launch(name, *words[:place], "--dry_run", *words[place:])
        assert made.returncode == 0, made.stderr
        assert made.stdout + made.stderr
    assert stubs.calls == [], "a dry run must not call programs"
    source = (stubs.root / "bertjax" / "launchers" / name).read_text()
    for option in re.search(r'^known="(.*?)"', source, re.MULTILINE)[1].split():
        assert f"--{option} " in helped.stdout, f"--{option} is not explained"


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "slurm",
            ["--node", "2", "--", "x"],
            "unknown option --node; expected one of --name --nodes",
        ),
        ("slurm", ["--nodes"], "--nodes: expected a value"),
        ("slurm", ["--nodes", "2"], "expected -- and a command"),
        ("slurm", ["--PATH", "/x", "--", "x"], "unknown option --PATH"),
        ("tpu", ["--zone", "z", "--", "x"], "--type: expected a value"),
        ("ssh", ["--", "x"], "--hosts: expected a value"),
        ("gke", ["--gpu", "h100", "--", "x"], "--image: expected a value"),
        (
            "gke",
            ["--image", "i", "--gpu", "h", "--slices", "2", "--", "x"],
            "--slices applies to TPUs only",
        ),
    ],
)
def test_a_user_error_is_one_line(stubs, name, words, message):
    result = stubs.launch(name, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"bertjax launch {name}: error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert stubs.calls == []


def job_of(stubs, *words) -> str:
    result = stubs.launch("slurm", *words, "--", *COMMAND)
    assert result.returncode == 0, result.stderr
    assert stubs.calls[-1] == ["sbatch"]
    assert stubs.stdin("sbatch") == result.stdout
    return result.stdout


def srun_of(job: str) -> list[str]:
    return shlex.split(next(line for line in job.splitlines() if line.startswith("srun ")))


def test_slurm_with_gpus_on_two_nodes(stubs):
    job = job_of(stubs, "--name", "masks", "--nodes", "2", "--gpus", "8", "--time", "1:00:00")
    options = re.findall(r"^#SBATCH (.*)$", job, re.MULTILINE)
    assert {"--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--time=1:00:00"} < set(
        options
    )
    assert {"--requeue", "--signal=TERM@120", "--open-mode=append"} < set(options)
    run = str(stubs.root / "tools" / "run")
    assert srun_of(job) == ["srun", run, *COMMAND, "--distributed"]


def test_slurm_on_the_cpus_of_one_node(stubs):
    job = job_of(stubs, "--cpus", "16", "--partition", "cpu")
    assert "gpus" not in job
    assert "#SBATCH --cpus-per-task=16\n" in job
    assert "#SBATCH --partition=cpu\n" in job
    assert srun_of(job)[2:] == COMMAND


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (143, True), (2, False)])
def test_a_slurm_job_that_saved_is_requeued(stubs, status, requeued):
    job = job_of(stubs)
    stubs.replies((["srun"], "", status))
    path = f"{stubs.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "STUBS": str(stubs.folder), "SLURM_JOB_ID": "17"}
    ended = subprocess.run(["bash", "-c", job], env=environment, stdin=subprocess.DEVNULL)
    assert ended.returncode == status
    assert (["scontrol", "requeue", "17"] in stubs.calls) == requeued


def remote(call: list[str]) -> tuple[str, list[str]]:
    """The machine of an ssh call, and the words of the remote command."""
    return call[-2], shlex.split(call[-1])


def test_ssh_passes_the_coordinator_to_every_machine(stubs):
    hosts = ("--hosts", "me@one,two,three", "--folder", "/shared/a checkout", "--port", "99")
    result = stubs.launch("ssh", *hosts, "--", *COMMAND)
    assert result.returncode == 0, result.stderr
    found = dict(remote(call) for call in stubs.calls)
    assert found == {
        machine: [
            *("cd", "/shared/a checkout", "&&", "BERTJAX_COORDINATOR=one:99"),
            *("BERTJAX_PROCESSES=3", f"BERTJAX_PROCESS={number}"),
            *("tools/run", *COMMAND, "--distributed"),
        ]
        for number, machine in enumerate(("me@one", "two", "three"))
    }


def test_ssh_restarts_when_a_machine_is_lost_but_not_after_a_user_error(stubs):
    words = ("--hosts", "one,two", "--", *COMMAND)
    stubs.replies((["ssh", " two "], "step 1\n", 255), (["ssh", " two "], "", 143))
    result = stubs.launch("ssh", *words)
    assert result.returncode == 0, result.stderr
    assert [call[0] for call in stubs.calls].count("ssh") == 6
    assert [call for call in stubs.calls if call[0] == "sleep"] == [["sleep", "30"]] * 2
    assert "exit status 255; restarting all machines in 30 s" in result.stderr
    assert "two: step 1" in result.stdout
    late = TemporaryError.exit_status
    stubs.replies((["ssh", " two "], "", 255), (["ssh", " one "], "", late))
    assert stubs.launch("ssh", *words).returncode == 0
    assert [call[0] for call in stubs.calls].count("ssh") == 10
    stubs.replies((["ssh", " one "], "", 2))
    assert stubs.launch("ssh", *words).returncode == 2
    assert [call[0] for call in stubs.calls].count("ssh") == 12


def test_ssh_to_one_machine_is_not_distributed(stubs):
    assert stubs.launch("ssh", "--hosts", "one", "--", *COMMAND).returncode == 0
    assert remote(stubs.calls[0])[1][3:] == ["tools/run", *COMMAND]


STATE = ["queued-resources describe"]
WORKERS = ["tpu-vm ssh"]
TPU = ("--name", "masks", "--zone", "z", "--type", "v5litepod-16", "--poll", "0", "--spot")


def gcloud_commands(stubs) -> list[str]:
    """Calls of gcloud, except for queries of the state."""
    words = [call[3] + " " + call[4] for call in stubs.calls if call[0] == "gcloud"]
    return [word for word in words if not word.endswith("describe")]


ONE_RUN = ["tpu-vm scp", "tpu-vm ssh", "tpu-vm ssh"]
CREATE, DELETE = "queued-resources create", "queued-resources delete"


def test_a_tpu_is_requested_awaited_installed_used_and_deleted(stubs):
    states = [("", 1), ("WAITING_FOR_RESOURCES", 0), ("PROVISIONING", 0), ("ACTIVE", 0)]
    stubs.replies(*((STATE, *state) for state in states))
    result = stubs.launch("tpu", *TPU, "--", *COMMAND)
    assert result.returncode == 0, result.stderr
    assert gcloud_commands(stubs) == [CREATE, *ONE_RUN, DELETE]
    create = next(call for call in stubs.calls if "create" in call)
    assert create[5:] == [
        *("masks", "--zone", "z", "--node-id", "masks", "--accelerator-type", "v5litepod-16"),
        *("--runtime-version", "v2-alpha-tpuv5-lite", "--spot"),
    ]
    *_, install, run = [call for call in stubs.calls if "tpu-vm" in call]
    assert install[-1].endswith("-e './bertjax[tpu,gcs]'")
    assert run[5:9] == ["masks", "--zone", "z", "--worker"]
    words = shlex.split(run[-1])
    assert words == ["cd", "bertjax", "&&", "../environment/bin/bertjax", *COMMAND, "--distributed"]


def test_a_preempted_tpu_is_requested_again(stubs):
    states = ["ACTIVE", "SUSPENDING", "SUSPENDED"]
    lost = (["tpu-vm ssh", "environment/bin/bertjax pretrain"], "", 255)
    absent = (STATE, "", 1)
    stubs.replies(*((STATE, state, 0) for state in states), absent, (STATE, "ACTIVE", 0), lost)
    result = stubs.launch("tpu", *TPU, "--keep", "--", *COMMAND)
    assert result.returncode == 0, result.stderr
    assert gcloud_commands(stubs) == [*ONE_RUN, DELETE, CREATE, *ONE_RUN]


def test_a_tpu_whose_run_failed_is_not_deleted(stubs):
    failed = (["tpu-vm ssh", "environment/bin/bertjax pretrain"], "no such luck", 1)
    stubs.replies((STATE, "ACTIVE", 0), failed)
    result = stubs.launch("tpu", *TPU, "--", *COMMAND)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        "bertjax launch tpu: error: the run failed with exit status 1; "
        "the TPU masks was not deleted"
    )
    assert gcloud_commands(stubs) == ONE_RUN


def jobset_of(stubs, *words) -> dict:
    result = stubs.launch("gke", "--name", "masks", "--image", "i", *words, "--", *COMMAND)
    assert result.returncode == 0, result.stderr
    assert stubs.calls == [["kubectl", "apply", "-f", "-"]]
    assert stubs.stdin("kubectl") == result.stdout
    return yaml.safe_load(result.stdout)


def test_gke_on_tpus(stubs):
    where = ("--tpu", "tpu-v5-lite-podslice", "--topology", "4x4", "--hosts", "4", "--slices", "2")
    jobset = jobset_of(stubs, *where, "--bucket", "ours", "--restarts", "7")
    assert jobset["metadata"]["name"] == "masks"
    assert "annotations" in jobset["metadata"]
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 7
    (jobs,) = jobset["spec"]["replicatedJobs"]
    assert jobs["replicas"] == 2
    job = jobs["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (4, 4, 0)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [2], "a user error is not retried"
    pod = job["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["volumes"][0]["csi"]["volumeAttributes"] == {"bucketName": "ours"}
    (container,) = pod["containers"]
    assert container["command"] == ["bertjax", *COMMAND, "--distributed"]
    assert container["resources"] == {"limits": {"google.com/tpu": 4}}
    assert container["volumeMounts"] == [{"name": "bucket", "mountPath": "/bucket"}]
    assert "env" not in container, "JAX finds the hosts of TPUs automatically"


def test_gke_on_gpus(stubs):
    jobset = jobset_of(stubs, "--gpu", "nvidia-h100-80gb", "--hosts", "2", "--devices", "8")
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    printed = {one["name"]: one.get("value") for one in container["env"]}
    assert printed == {
        "BERTJAX_COORDINATOR": "masks-hosts-0-0.masks:8476",
        "BERTJAX_PROCESSES": "2",
        "BERTJAX_PROCESS": None,
    }
    assert "volumes" not in pod
    assert "annotations" not in jobset["metadata"]


def test_gke_with_xpk(stubs):
    where = ("--name", "masks", "--image", "i", "--cluster", "c", "--type", "v5litepod-16")
    assert stubs.launch("gke", *where, "--", *COMMAND).returncode == 0
    ((program, *words),) = stubs.calls
    assert [program, *words[:2]] == ["xpk", "workload", "create"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert options["--max-restarts"] == "100"
    assert shlex.split(options["--command"]) == ["bertjax", *COMMAND, "--distributed"]


def test_the_commands_that_a_sweep_emits_run(stubs, run_bertjax):
    sweep = ("--config", "experiments/masking_rate.py", "--workdir", stubs.folder / "w")
    emitted = run_bertjax("sweep", "emit", "slurm", *sweep, "--", "--gpus", "1")
    assert emitted.returncode == 0, emitted.stderr
    program = stubs.folder / "bin" / "bertjax"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m bertjax "$@"\n')
    program.chmod(0o755)
    path = f"{stubs.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [shutil.which("sh")],
        input=emitted.stdout,
        capture_output=True,
        text=True,
        cwd=stubs.root,
        env={"PATH": path, "STUBS": str(stubs.folder)},
    )
    assert ended.returncode == 0, ended.stderr
    assert stubs.calls == [["sbatch"]] * 6
    last = srun_of(stubs.stdin("sbatch"))
    assert last[2:5] == ["pretrain", "--config", "experiments/masking_rate.py"]
    assert str(stubs.folder / "w" / "masked_lm_prob=0.4,seed=1") in last


def test_the_command_becomes_the_script_and_jobs_keep_their_environment(monkeypatch):
    def replace_process(*call):
        raise SystemExit(call)  # as execvpe, it does not return

    monkeypatch.setattr(os, "execvpe", replace_process)
    monkeypatch.setenv("BERTJAX_PYTHON", "the user's own")
    with pytest.raises(SystemExit) as replaced:
        launch.main(["slurm", "--nodes", "2"])
    program, words, environment = replaced.value.code
    assert (program, words[2:]) == ("bash", ["--nodes", "2"])
    assert words[1].endswith("launchers/slurm")
    assert environment["BERTJAX_PYTHON"] == "the user's own"
    assert environment["BERTJAX_LAUNCH_PYTHON"] == sys.executable


def test_without_a_checkout_the_installed_package_runs_the_command(stubs, tmp_path):
    folder = shutil.copytree(
        stubs.root / "bertjax" / "launchers", tmp_path / "site/bertjax/launchers"
    )
    printed = subprocess.run(
        ["bash", folder / "slurm", "--dry_run", "--", *COMMAND],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "BERTJAX_LAUNCH_PYTHON": "/opt/python3"},
    )
    assert srun_of(printed.stdout) == ["srun", "/opt/python3", "-m", "bertjax", *COMMAND]
