"""bertjax sweep: runs are processes, which a stub that writes their files replaces."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from bertjax import cli
from bertjax.sweeps import display, scheduler, sweep

SWEEP = """
from bertjax.config import load_config
from bertjax.sweeps.grid import product

def get_config():
    config = load_config("configs/bert.py:tiny").unlock()
    config.update(num_train_steps=10, log_every=1)
    config.data.phases = ()
    config.optimizer.update(learning_rate=1e-3, warmup_steps=0)
    return config

def get_runs():
    return RUNS
"""
FOUR = 'product({"optimizer.learning_rate": (1e-3, 3e-3), "seed": (0, 1)})'
NAMES = [f"learning_rate={rate},seed={seed}" for rate in ("1e-3", "3e-3") for seed in (0, 1)]

FINETUNING = """
from bertjax.config import load_config

def get_config(task):
    config = load_config(f"configs/glue.py:{task}").unlock()
    config.optimizer.learning_rate = 1e-3
    return config

def get_runs():
    return [{"name": "one", "init": "runs/a"}, {"optimizer.learning_rate": 0.5}]
"""

STAND_IN = """
import json, os, pathlib, signal, sys, time
from bertjax.runs.workdir import claim, write_summary

words = sys.argv[1:]
option = dict(zip(words, words[1:]))
workdir = pathlib.Path(option["--workdir"])
fields = [word.removeprefix("--config.").split("=") for word in words if "--config." in word]
here = pathlib.Path(__file__).parent
with open(here / "order", "a") as file:
    file.write(f"{workdir.name}\\n")
orders = json.loads((here / "orders.json").read_text())

def stopped(*_):
    (workdir / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, stopped)
config = dict(fields) | {"num_train_steps": 10}
match orders.get(workdir.name, 4.0):
    case "fail":
        sys.exit("bertjax pretrain: error: no such luck")
    case "killed":
        print("step 3", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    case "wait":
        with claim(workdir, config):
            (workdir / "metrics.jsonl").write_text('{"step": 3, "loss": 9.0}\\n')
            time.sleep(60)
    case loss:
        with claim(workdir, config):
            steps = [{"step": 5, "held_out/mlm/loss": loss - 0.5, "loss": 7.0},
                     {"step": 10, "held_out/mlm/loss": loss}]
            folder = workdir / "seed_0" if words[0] == "finetune" else workdir
            folder.mkdir(exist_ok=True)
            lines = [json.dumps(step) + "\\n" for step in steps]
            (folder / "metrics.jsonl").write_text("".join(lines))
            seeds = int(option.get("--seeds", 1))
            summary = {"status": "complete", "steps": 10, "seeds": seeds}
            write_summary(workdir, summary)
            if words[0] == "finetune":
                scores = {"dev/score": dict.fromkeys(("median", "min", "max"), loss / 10)}
                (workdir / "partial").write_text(json.dumps(summary | {"over_seeds": scores}))
                (workdir / "partial").rename(workdir / "results.json")  # atomic: it is read
"""

IN_A_PROCESS = """
import sys
from bertjax import cli
from bertjax.sweeps import scheduler
scheduler.COMMAND = (sys.executable, {script!r})
sys.exit(cli.main(["sweep", "run", *sys.argv[1:]]))
"""


class Home:
    """A folder with a sweep file, and a stub of the runs with its instructions."""

    def __init__(self, folder: pathlib.Path, capsys):
        self.folder, self.workdir, self._capsys = folder, folder / "sweep", capsys
        self.file = folder / "experiments" / "question.py"
        self.place = ("--config", self.file, "--workdir", self.workdir)
        self.script = folder / "stand_in.py"
        self.script.write_text(STAND_IN)
        self.file.parent.mkdir()
        self.runs(FOUR)
        self.orders({})

    def runs(self, text: str, template: str = SWEEP) -> None:
        self.file.write_text(template.replace("RUNS", text))

    def orders(self, orders: dict) -> None:
        (self.folder / "orders.json").write_text(json.dumps(orders))

    def sweep(self, *words: object) -> tuple[int, str, str]:
        return self.type("run", *self.place, *words)

    def status(self, workdir: pathlib.Path, *words: object) -> tuple[int, str, str]:
        return self.type("status", "--workdir", workdir, *words)

    def type(self, *words: object) -> tuple[int, str, str]:
        status = cli.main(["sweep", *map(str, words)])
        return status, *self._capsys.readouterr()

    @property
    def started(self) -> list[str]:
        path = self.folder / "order"
        return path.read_text().split() if path.exists() else []

    @property
    def results(self) -> dict:
        return json.loads((self.workdir / "results.json").read_text())

    def files(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.folder.rglob("*")}


@pytest.fixture
def home(tmp_path, root, monkeypatch, capsys):
    home = Home(tmp_path, capsys)
    monkeypatch.chdir(root)
    monkeypatch.setattr(scheduler, "COMMAND", (sys.executable, str(home.script)))
    return home


def test_every_run_has_a_name_a_folder_and_a_row(home):
    home.orders({NAMES[2]: 3.0, NAMES[1]: 5.0})
    status, out, printed = home.sweep()
    assert status == 0, printed
    assert home.started == NAMES
    found = home.results
    assert (found["best"], found["metric"]) == (NAMES[2], "held_out/mlm/loss")
    run = found["runs"][NAMES[2]]
    assert run["settings"] == {"optimizer.learning_rate": 3e-3, "seed": 0}
    assert (run["best"], run["best_step"], run["last"], run["step"]) == (2.5, 5, 3.0, 10)
    assert run["metrics"]["loss"] == 7.0
    rows = [line.split()[:5] for line in out.splitlines()]
    assert rows[2] == [NAMES[0], "done", "10/10", "3.5000", "4.0000"]
    assert rows[3] == [NAMES[1], "done", "10/10", "4.5000", "5.0000"]
    assert "2.5000*" in (home.workdir / "table.md").read_text()
    assert out.splitlines()[-1] == "4 runs: 4 done"
    assert f"[2/4] {NAMES[1]}" in printed
    assert f"{NAMES[1]}: held_out/mlm/loss 4.5000, " in printed


def test_a_failed_run_does_not_stop_others_and_is_retried(home):
    home.orders({NAMES[1]: "fail"})
    status, out, printed = home.sweep("--parallel", 2)
    assert status == 2
    assert sorted(home.started) == sorted(NAMES)
    log = home.workdir / NAMES[1] / "run.log"
    assert f"{NAMES[1]} failed: bertjax pretrain: error: no such luck ({log})" in out
    assert printed.splitlines()[-1] == (
        f"bertjax sweep run: error: 1 of 4 runs failed, the others are done: {log}"
    )
    run = home.results["runs"][NAMES[1]]
    assert (run["state"], run["error"]) == ("failed", "bertjax pretrain: error: no such luck")
    assert run["log"] == str(log)
    assert f"- {NAMES[1]} failed: " in (home.workdir / "table.md").read_text()
    # As when another machine has started it again.
    later = time.time() + 9
    (log.parent / "metrics.jsonl").touch()
    os.utime(log.parent / "metrics.jsonl", (later, later))
    assert "4 runs: 3 done, 1 incomplete" in home.status(home.workdir)[1]
    home.orders({})
    assert home.sweep()[0] == 0
    assert home.started[4:] == [NAMES[1]]
    assert home.results["runs"][NAMES[1]]["state"] == "done"
    assert home.sweep()[0] == 0
    assert len(home.started) == 5


def test_a_killed_run_is_reported_with_its_signal_and_last_output(home):
    """The last line of output alone would mislead, for instance after an out-of-memory kill."""
    home.orders({NAMES[0]: "killed"})
    assert f"{NAMES[0]} failed: ended by SIGKILL; last output: step 3 (" in home.sweep()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_to_a_sweep_lets_its_runs_save(home, command_environment, number):
    home.orders(dict.fromkeys(NAMES[1:3], "wait"))
    words = ["--config", home.file, "--workdir", home.workdir, "--parallel", "2"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS.format(script=str(home.script)), *words],
        **{"env": command_environment, "text": True, **pipes},
    )
    waiting = [home.workdir / name for name in NAMES[1:3]]
    wait_until(lambda: all((folder / "metrics.jsonl").exists() for folder in waiting))
    _, out, _ = home.status(home.workdir)
    assert out.splitlines()[-1] == "4 runs: 1 done, 2 running, 1 waiting"
    process.send_signal(number)
    out, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + number, printed
    assert all((folder / "saved").exists() for folder in waiting)
    assert (
        printed.splitlines()[-1] == "bertjax sweep run: stopped; the same command resumes the runs"
    )
    states = [run["state"] for run in home.results["runs"].values()]
    assert states == ["done", "incomplete", "incomplete", "waiting"]
    home.orders({})
    assert home.sweep()[0] == 0
    assert sorted(home.started) == sorted([*NAMES, *NAMES[1:3]])


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_a_run_that_survived_its_killed_sweep_is_awaited(home):
    """Two processes must not write to one workdir."""
    folder = home.workdir / NAMES[0]
    holds = "import sys, time; from bertjax.runs.workdir import claim; held = claim(sys.argv[1], "
    holds += "{}); print(flush=True); time.sleep(1)"
    with subprocess.Popen(
        [sys.executable, "-c", holds, folder], stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        assert home.sweep()[0] == 0
        assert process.poll() is not None, "one at a time, whoever began it"
    assert home.started == NAMES


def test_status_needs_only_the_folder_and_writes_nothing(home, tmp_path):
    home.sweep()
    moved = home.workdir.rename(tmp_path / "elsewhere")
    home.file.unlink()
    before = home.files()
    status, out, _ = home.status(moved)
    assert (status, out.splitlines()[-1]) == (0, "4 runs: 4 done")
    status, out, _ = home.status(moved, "--json")
    assert json.loads(out)["runs"][NAMES[3]]["best"] == 3.5
    assert home.files() == before


def test_a_dry_run_prints_commands_and_writes_nothing(home):
    before = home.files()
    status, out, _ = home.sweep("--dry_run", "--config.num_train_steps=7")
    assert status == 0
    assert home.files() == before
    commands = [shlex.split(line) for line in out.splitlines()]
    assert commands[3] == [
        *("bertjax", "pretrain", "--config", str(home.file)),
        *("--workdir", str(home.workdir / NAMES[3]), "--config.num_train_steps=7"),
        *("--config.optimizer.learning_rate=3e-3", "--config.seed=1"),
    ]


def test_missing_runs_become_commands_of_a_launcher(home):
    home.orders({NAMES[1]: "fail"})
    home.sweep()
    status, out, _ = home.type("emit", "slurm", *home.place, "--", "--partition", "a b")
    assert status == 0
    about, command = [line for line in out.splitlines() if line][1:]
    assert about == f"# {NAMES[1]}"
    assert shlex.split(command) == [
        *("bertjax", "launch", "slurm", "--name", "sweep-learning-rate-1e-3-seed-1"),
        *("--partition", "a b", "--", "pretrain", "--config", str(home.file)),
        *("--workdir", str(home.workdir / NAMES[1])),
        *("--config.optimizer.learning_rate=1e-3", "--config.seed=1"),
    ]
    assert "4 runs: 3 done, 1 failed" in home.status(home.workdir)[1]


def test_a_sweep_grows_and_more_steps_extend_its_runs(home):
    home.sweep()
    home.runs(FOUR.replace("(0, 1)", "(0, 1, 2)"))
    assert home.sweep()[0] == 0
    assert len(home.started) == 6
    assert home.sweep("--config.num_train_steps=11")[0] == 2, "the stand-in never does 11"
    assert len(home.started) == 12


def test_the_folder_of_another_sweep_is_refused(home):
    home.sweep()
    before = (home.workdir / "config.json").read_bytes()
    home.runs('product({"optimizer.learning_rate": (1e-3, 3e-3), "seed": (5, 6)})')
    captured = one_line(home.sweep())
    assert "belongs to another sweep: its run learning_rate=1e-3,seed=0 has started" in captured
    home.runs(FOUR)
    captured = one_line(home.sweep("--config.optimizer.warmup_steps=3"))
    assert "sweep.config.optimizer.warmup_steps: 0 in the folder, got 3" in captured
    assert (home.workdir / "config.json").read_bytes() == before
    assert len(home.started) == 4


def one_line(ended: tuple[int, str, str]) -> str:
    status, out, printed = ended
    assert (status, out) == (2, "")
    assert re.match("bertjax sweep [a-z]+: error: ", printed)
    assert printed.count("\n") == 1, printed
    return printed


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ('product({"optimizer.learning_rat": (1, 2)})', "did you mean 'learning_rate'?"),
        ('product({"seed": (1, "x")})', "run seed=x: config.seed: got 'x', expected an integer"),
        ('[{"seed": 1}, {"seed": 1}]', "runs 1 and 2 are both named 'base'"),
        ('[{"seed": 0}, {"seed": 1}, {"seed": 1}]', "runs 2 and 3 are both named 'seed=1'"),
        ('[{"name": "a/b"}]', "name of a run: got 'a/b', expected letters, digits"),
        ("[]", "get_runs(): got list '[]', expected a list of runs, each a dict"),
        ('{"seed": (1, 2)}', "expected a list of runs, each a dict"),
        ("1 / 0", "get_runs() failed: line 13: ZeroDivisionError"),
        ('product({"seed": (1,)}, {"seed": (2,)})', "product: seed is in two parts"),
        ('[{"init": "runs/a"}]', "'init' of a run requires fine-tuning"),
    ],
)
def test_an_error_in_the_file_is_one_line_before_anything_is_written(home, runs, message):
    home.runs(runs)
    assert message in one_line(home.sweep())
    assert not home.workdir.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parallel", "0"], "--parallel: got 0, expected an integer >= 1"),
        (["--config.seed=3"], "--config.seed is set by"),
        (["--config.sed=3"], "no field 'sed' in config: did you mean 'seed'?"),
        (["--seeds", "3"], "--seeds requires fine-tuning"),
        (["--", "--gpus", "8"], "words after --: got '--gpus', expected none"),
    ],
)
def test_an_error_on_the_command_line_is_one_line(home, words, message):
    assert message in one_line(home.sweep(*words))
    assert not home.workdir.exists()


def test_other_files_and_folders_than_sweeps_are_refused(home, tmp_path):
    home.file.write_text(home.file.read_text().replace("get_runs", "get_nothing"))
    assert "defines no get_runs(); pass a sweep file" in one_line(home.sweep())
    (tmp_path / "config.json").write_text("{}")
    assert "is not the folder of a sweep" in one_line(home.status(tmp_path))
    assert "required: --config, --workdir" in one_line(home.type("run"))


def test_a_config_with_a_task_is_fine_tuned(home):
    home.runs("", FINETUNING)
    spec = f"{home.file}:rte"
    words = ("--config", spec, "--workdir", home.workdir, "--data", "glue")
    assert "--init: got none, expected the pretrained run" in one_line(home.type("run", *words))
    assert "--data: got none, expected the folder" in one_line(home.type("run", *words[:4]))
    home.orders({"one": 8.0})
    status, out, printed = home.type("run", *words, "--init", "runs/b", "--seeds", 2)
    assert status == 0, printed
    assert home.started == ["one", "learning_rate=0.5"]
    assert home.results["best"] == "one"
    assert home.results["runs"]["one"]["best"] == 0.8
    _, out, _ = home.type("run", *words, "--init", "runs/b", "--seeds", 3, "--dry_run")
    assert shlex.split(out.splitlines()[0]) == [
        *("bertjax", "finetune", "--config", spec, "--init", "runs/a", "--data", "glue"),
        *("--seeds", "3", "--workdir", str(home.workdir / "one")),
    ]
    captured = one_line(home.type("run", *words, "--init", "runs/other"))
    assert 'sweep.options.init: "runs/b" in the folder, got "runs/other"' in captured


def test_the_live_table_shows_running_runs(home, monkeypatch):
    home.orders({NAMES[1]: "fail"})
    home.sweep()
    _, found = sweep.read(str(home.workdir))
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(display.rich_table(found, 9, "50%"))
    text = console.export_text()
    console.file.close()
    assert NAMES[1] in text, "what failed is shown before what is done"
    assert NAMES[3] not in text
    assert "50%" in text
