"""bertjax suite superglue: a suite of runs, with a stub in place of bertjax finetune."""

import json
import sys
import zipfile

import pytest

from bertjax import cli
from bertjax.sweeps import scheduler, superglue
from bertjax.sweeps.run import Score
from bertjax.tasks.superglue.table import TASKS

STAND_IN = """
import json, pathlib, sys
words = sys.argv[1:]
options = dict(zip(words, words[1:]))
workdir = pathlib.Path(options["--workdir"])
task, here = workdir.name, pathlib.Path(__file__).parent
folder = json.loads((here / "folders.json").read_text())
names = ["score", "accuracy", "macro_f1", "f1a", "f1", "exact_match"]
score = 0.25 if task == "boolq" else 0.5
spread = {"median": score, "min": score - 0.1, "max": score + 0.1}
results = {"status": "complete", "seeds": int(options["--seeds"]), "predictions": {"seed": 1}}
results["over_seeds"] = {f"dev/{name}": spread for name in names}
output = workdir / "predictions" / "test"
output.mkdir(parents=True, exist_ok=True)
for name in [folder[task]] + ["AX-b", "AX-g"] * (task == "rte"):
    (output / f"{name}.jsonl").write_text(f"{options['--config']}")
# Atomic as in `bertjax finetune`: the suite reads the results of other runs meanwhile.
(workdir / "partial").write_text(json.dumps(results))
(workdir / "partial").rename(workdir / "results.json")
"""


@pytest.fixture
def suite(tmp_path, root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "folders.json").write_text(json.dumps({task.name: task.folder for task in TASKS}))
    monkeypatch.setattr(scheduler, "COMMAND", (sys.executable, str(tmp_path / "stand_in.py")))
    for task in TASKS:
        (tmp_path / "data" / task.folder).mkdir(parents=True)

    def run(*words):
        fixed = ["--init", "runs/bert", "--data", str(tmp_path / "data")]
        fixed += ["--workdir", str(tmp_path / "suite")]
        status = cli.main(["suite", "superglue", *fixed, *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_all_tasks_give_a_table_an_average_and_an_archive(suite, tmp_path):
    status, out, printed = suite("--seeds", 2, "--recipe", "small")
    assert status == 0, printed
    assert "lacks" not in printed
    found = json.loads((tmp_path / "suite" / "results.json").read_text())
    assert list(found["tasks"]) == [task.name for task in TASKS]
    assert found["average"] == pytest.approx((0.25 + 7 * 0.5) / 8)
    assert json.loads(out.splitlines()[-1]) == {"average": found["average"], "tasks": 8}
    table = (tmp_path / "suite" / "table.md").read_text()
    assert "| cb | accuracy, macro_f1 | 50.0 / 50.0 | 40.0 to 60.0 | 2 |" in table
    assert "| average of 8 |  | 46.9 |" in table
    with zipfile.ZipFile(tmp_path / "suite" / "submission.zip") as archive:
        names = ["BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "AX-b", "AX-g", "WiC", "WSC"]
        assert archive.namelist() == [f"{name}.jsonl" for name in names]
        assert archive.read("WSC.jsonl") == b"configs/superglue.py:wsc,small"


def test_some_tasks_and_refused_options(suite, tmp_path):
    status, out, printed = suite("--tasks", "wsc,boolq")
    assert status == 0
    assert "average of 2" in out
    assert "lacks files that the server requires: CB.jsonl, COPA.jsonl, MultiRC.jsonl" in printed
    assert "average of 3" in suite("--tasks", "cb")[1]
    other = tmp_path / "other.py"
    recipe = "superglue.get_config(argument.replace('wsc', 'wic'))"
    other.write_text(f"from configs import superglue\ndef get_config(argument): return {recipe}\n")
    for words, message in (
        (["--tasks", "bool"], "unknown SuperGLUE task 'bool': "),
        (
            ["--tasks", "cb", "--config", str(other)],
            'superglue.recipes.wsc.task.dataset: "wsc" in the folder, got "wic"',
        ),
        (["--config.task.dataset=cb"], "since --tasks sets it in every run; leave --config.task"),
        (
            ["--data", str(tmp_path)],
            "has no folder of a SuperGLUE task: --data expects the folder that contains BoolQ/",
        ),
    ):
        status, _, printed = suite(*words)
        assert status == 2
        assert message in printed
        assert printed.count("\n") == 1


def test_the_score_of_a_task_is_the_mean_of_its_metrics(tmp_path):
    medians = {"dev/f1a": 0.75, "dev/exact_match": 0.25, "dev/score": 0.4}
    score = Score("multirc", tmp_path, medians, 0.4, 0.4, 1)
    assert superglue.task_score(score) == 0.5
