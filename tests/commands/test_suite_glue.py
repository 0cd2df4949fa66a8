"""bertjax suite glue: a suite of runs, with a stub in place of bertjax finetune."""

import json
import sys
import zipfile

import pytest

from bertjax import cli
from bertjax.sweeps import glue, glue_table, scheduler
from bertjax.sweeps.run import Score
from bertjax.tasks.glue.table import GLUE, glue_task

STAND_IN = """
import json, pathlib, sys
words = sys.argv[2:]
options = dict(zip(words, words[1:]))
workdir, init = pathlib.Path(options["--workdir"]), options["--init"]
here = pathlib.Path(__file__).parent
name = str(workdir.relative_to(sys.argv[1]))
task = name.partition("/")[0]
with open(here / "order", "a") as file:
    file.write(f"{task} {init}\\n")
scores = json.loads((here / "scores.json").read_text())
score = scores.get(name, scores.get(task, 0.5))
if score == "broken":
    sys.exit("no such luck")
names = ["dev/score", "dev/accuracy", "dev/f1", "dev/matthews", "dev/pearson", "dev/spearman"]
names.append("dev_mismatched/accuracy")
spread = {"median": score, "min": score - 0.1, "max": score + 0.1}
results = {"status": "complete", "seeds": int(options["--seeds"]), "predictions": {"seed": 1}}
results["over_seeds"] = {name: spread for name in names}
folder = workdir / "predictions" / "test"
folder.mkdir(parents=True, exist_ok=True)
for name in json.loads((here / "files.json").read_text())[task]:
    (folder / name).write_text(f"of {task}")
# Atomic as in `bertjax finetune`: the suite reads the results of other runs meanwhile.
(workdir / "partial").write_text(json.dumps(results))
(workdir / "partial").rename(workdir / "results.json")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Replace `bertjax finetune` by a stub; returns a function that sets the scores."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    files = {
        task.name: [f"{s.server}.tsv" for s in task.splits if s.server and not s.labelled]
        for task in GLUE
    }
    (tmp_path / "files.json").write_text(json.dumps(files))
    command = (sys.executable, str(script), str(tmp_path / "suite"))
    monkeypatch.setattr(scheduler, "COMMAND", command)

    def set_scores(**scores):
        (tmp_path / "scores.json").write_text(json.dumps(scores))

    set_scores()
    return set_scores


@pytest.fixture
def data(tmp_path):
    for task in GLUE:
        (tmp_path / "data" / task.folder).mkdir(parents=True)
    return tmp_path / "data"


@pytest.fixture
def suite(stand_in, data, tmp_path, root, monkeypatch, capsys):
    monkeypatch.chdir(root)

    def run(*words):
        fixed = ("--init", "runs/bert", "--data", str(data), "--workdir", str(tmp_path / "suite"))
        status = cli.main(["suite", "glue", *fixed, *map(str, words)])
        return status, *capsys.readouterr()

    return run


def test_all_tasks_give_a_table_an_average_and_an_archive(suite, stand_in, tmp_path):
    stand_in(cola=0.2, rte=0.8)
    status, out, printed = suite("--seeds", 2)
    assert status == 0, printed
    folder = tmp_path / "suite"
    found = json.loads((folder / "results.json").read_text())
    assert set(found["tasks"]) == {task.name for task in GLUE}
    assert found["average"] == pytest.approx((0.2 + 0.8 + 7 * 0.5) / 9)
    assert found["tasks"]["cola"]["dev/score"] == {"min": 0.1, "max": pytest.approx(0.3)}
    assert json.loads(out.splitlines()[-1])["tasks"] == 9
    assert (
        "| cola | matthews | 20.0 | 10.0 to 30.0 | 2 | 56.3 |" in (folder / "table.md").read_text()
    )
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        names = archive.namelist()
        assert archive.read("RTE.tsv") == b"of rte"
    expected = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "AX", "QNLI", "RTE"]
    assert sorted(names) == sorted(f"{name}.tsv" for name in [*expected, "WNLI"])
    assert "lacks" not in printed


def test_failed_tasks_are_named_and_only_they_run_again(suite, stand_in, tmp_path):
    stand_in(rte="broken")
    status, out, printed = suite("--tasks", "cola,rte")
    assert status == 2
    assert "rte: failed (no such luck)" in printed
    assert "1 of 2 runs failed, the others are done: " in printed
    assert "average of 1" in out
    assert "lacks files that the server requires: SST-2.tsv, MRPC.tsv" in printed
    written = (tmp_path / "suite" / "cola" / "results.json").stat().st_mtime_ns
    stand_in(rte=0.7)
    status, out, _ = suite("--tasks", "cola,rte")
    assert status == 0
    assert "average of 2" in out
    assert (tmp_path / "suite" / "cola" / "results.json").stat().st_mtime_ns == written


def test_a_workdir_belongs_to_one_encoder(suite, data, tmp_path, capsys):
    """Scores of another encoder would be reported as those of this one."""
    assert suite("--tasks", "rte")[0] == 0
    words = ("--data", data, "--workdir", tmp_path / "suite", "--tasks", "rte")
    assert cli.main(["suite", "glue", "--init", "runs/other", *map(str, words)]) == 2
    output = capsys.readouterr().err
    assert 'glue.init: "runs/bert" in the folder, got "runs/other"' in output
    assert output.count("\n") == 1


OTHER_RECIPES = """
from configs import glue

def get_config(argument):
    config = glue.get_config(argument)
    if argument == "rte":
        config.optimizer.learning_rate = 0.5
    return config
"""


def test_a_workdir_belongs_to_one_set_of_recipes_for_any_tasks(suite, tmp_path):
    config, folder = tmp_path / "other.py", tmp_path / "suite"
    config.write_text(OTHER_RECIPES)
    assert suite("--tasks", "rte")[0] == 0
    for task in ("rte", "cola"):
        status, _, printed = suite("--tasks", task, "--config", config)
        assert (status, printed.count("\n")) == (2, 1)
        assert "glue.recipes.rte.optimizer.learning_rate: 2e-05 in the folder, got 0.5" in printed
    status, out, _ = suite("--tasks", "cola")
    assert status == 0
    assert "average of 2" in out
    assert list(json.loads((folder / "results.json").read_text())["tasks"]) == ["cola", "rte"]
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        assert archive.namelist() == ["CoLA.tsv", "RTE.tsv"]
    # A folder of a version that recorded no recipes.
    record = json.loads((folder / "config.json").read_text())
    del record["glue"]["recipes"]
    (folder / "config.json").write_text(json.dumps(record))
    assert suite("--tasks", "rte")[0] == 0
    assert suite("--tasks", "rte", "--config", config)[0] == 2


def test_a_grid_reports_its_best_point(suite, stand_in):
    stand_in(**{"rte/batch_32,rate_3e-05,epochs_4": 0.9})
    status, out, printed = suite("--tasks", "rte", "--grid", "--parallel", 4, "--seeds", 1)
    assert status == 0, printed
    assert "1 at 1 of 18 points" in out
    assert "90.0" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--grid", "--config.data.batch_size=8"), "config.data.batch_size: got 8, expected none"),
        (("--config.task.dataset=rte",), "since --tasks sets it in every run; leave --config.t"),
        (("--from_mnli", "--tasks", "mnli,cola"), "--from_mnli has no effect: got tasks cola, mn"),
    ],
)
def test_options_without_effect_on_the_runs_are_refused(suite, tmp_path, words, message):
    status, _, printed = suite("--tasks", "rte,mnli", *words)
    assert status == 2
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "suite").exists()


def test_small_tasks_can_be_initialised_from_mnli(suite, tmp_path):
    status, *_ = suite("--tasks", "rte,mnli,cola", "--from_mnli", "--parallel", 2)
    assert status == 0
    order = dict(line.split() for line in (tmp_path / "order").read_text().splitlines())
    assert order == {
        "mnli": "runs/bert",
        "cola": "runs/bert",
        "rte": str(tmp_path / "suite" / "mnli" / "seed_1"),
    }
    assert list(order)[-1] == "rte"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "colla"], "unknown GLUE task 'colla': did you mean 'cola'?"),
        (["--seeds", "0"], "--seeds: got 0, expected an integer >= 1"),
        (["--tasks", "rte", "--from_mnli"], "--from_mnli requires mnli among the tasks"),
        (["--recipe", "smal"], "unknown config argument 'smal': did you mean 'small'?"),
        (["--config.modle.x=1"], "no field 'modle'"),
    ],
)
def test_a_user_error_is_one_line_before_anything_runs(suite, tmp_path, words, message):
    status, out, errors = suite(*words)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "order").exists()


def test_if_mnli_fails_its_dependent_tasks_are_skipped(suite, stand_in, tmp_path):
    stand_in(mnli="broken")
    status, _, printed = suite("--tasks", "rte,mnli,cola", "--from_mnli")
    assert status == 2
    assert "rte: failed (not started: no finished run among mnli)" in printed
    log = tmp_path / "suite" / "mnli" / "finetune.log"
    assert printed.splitlines()[-1].endswith(f"2 of 3 runs failed, the others are done: {log}")
    stand_in()
    assert suite("--tasks", "rte,mnli,cola", "--from_mnli")[0] == 0
    order = [line.split()[0] for line in (tmp_path / "order").read_text().splitlines()]
    assert order == ["cola", "mnli", "mnli", "rte"]


def test_mnli_counts_once_with_both_of_its_dev_sets(tmp_path):
    medians = {"dev/accuracy": 0.8, "dev_mismatched/accuracy": 0.6}
    score = Score("mnli", tmp_path, medians, 0.8, 0.8, seeds=1)
    assert glue_table.task_score(score) == pytest.approx(0.7)
    assert glue_task("mnli").metrics == ("accuracy",)


def test_work_is_bytes_of_training_examples_times_epochs(tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_text(10 * "four\n")
    (tmp_path / "RTE" / "dev.tsv").write_text("x" * 900)
    recipes = {"rte": "glue:rte", "qqp": "glue:qqp"}

    def work(data, *overrides, **options):
        return [run.work for run in glue.plan(recipes, {"data": str(data)}, overrides, **options)]

    assert work(tmp_path) == [150, 3]
    assert work(tmp_path, ("num_train_epochs", 1)) == [50, 1]
    assert work(tmp_path, ("max_train_examples", 4)) == [60, 3]
    assert work(tmp_path, ("max_train_examples", 20)) == [150, 3]
    assert work(tmp_path, grid=True)[:3] == [100, 150, 200]
    assert work("tfds:somewhere") == [3, 3]
