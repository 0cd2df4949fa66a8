"""Extensions are local: a new model, objective and so on are new files, without other changes.

`data_fixtures/extensions/` has one of each kind. They are laid over a copy of `bertjax/` and
`configs/`, whose commands then pretrain, fine-tune, export and import with them.
"""

import json
import os
import pathlib
import random
import shutil
import string
import subprocess
import sys

import numpy as np
import pytest

from bertjax.train.checkpoint import restore, trees

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTENSIONS = ROOT / "tests" / "data_fixtures" / "extensions"

TABLE, TASKS = "bertjax/tasks/glue/table.py", "TASKS = (*GLUE, *CHINESE)"
ROW = """GlueTask(
    "length",
    "Length",
    ("short", "long"),
    ("accuracy",),
    _splits("Length", ("sentence",), "label"),
    ("sentence",),
)"""

NUM_DOCUMENTS, HELD_OUT = 80, 8
LEARNING_RATE, HALF_LIFE = 1e-3, 1

COMMANDS = {
    "help": "--help",
    "pretrain": "pretrain --config configs/mean_mixer.py --workdir run "
    "--config.data.input=text.txt --config.data.cache=cache --config.checkpoint_every=1 "
    "--config.log_every=1 --config.optimizer.momentum=0.5 "
    f"--config.optimizer.half_life={HALF_LIFE}",
    "first_letter": "finetune --config configs/first_letter.py --init run --data letters "
    "--workdir first_letter --config.keep_checkpoints=true",
    "predict": "predict --model first_letter/seed_0 --input texts.txt",
    "glue": "finetune --config configs/glue.py:length,tiny --init run --data . --workdir length "
    "--config.keep_checkpoints=true --config.num_train_epochs=1",
    "export": "export --model run --output run-hf",
    "import": "import --model run-hf --workdir run-again",
    "export_glue": "export --model length --output length-hf",
    "import_glue": "import --model length-hf --workdir length-again",
    "count": "count --tokenizer run/tokenizer texts.txt",
}

RUN_COMMANDS = """
import contextlib, io, json, sys
from bertjax import cli
outputs = {}
for name, command in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert cli.main(command.split()) == 0, command
    outputs[name] = output.getvalue()
print(json.dumps(outputs))
"""


def files_in(folder: pathlib.Path) -> set[pathlib.Path]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in paths if "__pycache__" not in path.parts}


def write_inputs(folder: pathlib.Path) -> None:
    """Writes a corpus, and the data of both tasks."""
    generator = random.Random(0)

    def words(count: int) -> str:
        letters = (generator.choices(string.ascii_lowercase, k=3) for _ in range(count))
        return " ".join(map("".join, letters))

    documents = [words(generator.randint(2, 20)) for _ in range(NUM_DOCUMENTS)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    for name in ("letters", "Length"):
        (folder / name).mkdir()
    for split, count in (("train", 16), ("dev", 4)):
        texts = [generator.choice("abc") + words(4) for _ in range(count)]
        rows = [f"{text}\t{text[0]}\n" for text in texts]
        (folder / "letters" / f"{split}.tsv").write_text("".join(rows))
        rows = [f"{words(size)}\t{('short', 'long')[size > 3]}\n" for size in (1, 9) * (count // 2)]
        (folder / "Length" / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    (folder / "texts.txt").write_text("abc\nbcd abc\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The copy of the checkout with the extensions."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("bertjax", "configs"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    assert not files_in(EXTENSIONS) & files_in(folder)
    shutil.copytree(EXTENSIONS, folder, dirs_exist_ok=True)
    table = (folder / TABLE).read_text()
    assert table.count(TASKS) == 1
    (folder / TABLE).write_text(table.replace(TASKS, f"{TASKS[:-1]}, {ROW})"))
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def outputs(project):
    """The standard output of every command; the last entry is the standard error of all."""
    environment = os.environ | {"PYTHONPATH": str(project), "JAX_PLATFORMS": "cpu"}
    flags = environment["XLA_FLAGS"].split()
    environment["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)
    result = subprocess.run(
        [sys.executable, "-c", RUN_COMMANDS, json.dumps(COMMANDS)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout) | {"stderr": result.stderr}


def params_at(checkpoint: pathlib.Path) -> dict[str, np.ndarray]:
    return trees.flatten_names(restore.load_numpy(checkpoint, "params"))


def metrics_of(run: pathlib.Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def config_of(run: pathlib.Path) -> dict:
    return json.loads((run / "config.json").read_text())


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_only_files_were_added(project):
    """Except for one row of the table of GLUE-style tasks."""
    changed = {
        path
        for name in ("bertjax", "configs")
        for path in files_in(ROOT / name)
        if (project / name / path).read_bytes() != (ROOT / name / path).read_bytes()
    }
    assert changed == {pathlib.Path(TABLE).relative_to("bertjax")}


def test_help_lists_the_verb(outputs):
    assert "Other:\n  count\n      Count the tokens of a text file.\n" in outputs["help"]
    assert json.loads(outputs["count"]) == {"lines": 2, "tokens": 9}


def test_pretraining(project, outputs):
    """With a new model, objective, optimizer, schedule and example format."""
    run = project / "run"
    config = config_of(run)
    model = {"name": "mean_mixer", "vocab_size": 64, "hidden_size": 8}
    assert config["model"] == model | {"initializer_range": 0.5}
    assert config["objectives"] == {"token_count": {"weight": 1.0}}
    assert config["data"]["format"] == "first-tokens"
    optimizer = {"momentum": 0.5, "half_life": HALF_LIFE}
    assert optimizer.items() <= config["optimizer"].items()

    steps = [record for record in metrics_of(run) if "loss" in record]
    rates = [record["learning_rate"] for record in steps]
    np.testing.assert_allclose(rates, [LEARNING_RATE, LEARNING_RATE / 2], rtol=1e-6)
    losses = [record["token_count/loss"] for record in steps]
    assert np.isfinite(losses).all()
    assert losses[0] > 0
    assert "token share error" in outputs["pretrain"]
    epochs = 2 * config["data"]["batch_size"] / (NUM_DOCUMENTS - HELD_OUT)
    assert f"{epochs:.2f} epochs" in outputs["stderr"]


def test_the_optimizer_moves_parameters_by_the_learning_rate(project, outputs):
    before, after = (params_at(project / "run" / "checkpoints" / step) for step in "12")
    assert before.keys() == after.keys()
    for name, array in before.items():
        moved = np.abs(after[name] - array) / (LEARNING_RATE / 2)
        assert moved.max() == pytest.approx(1, abs=1e-2), name
        assert np.minimum(moved, np.abs(moved - 1)).max() < 1e-2, name


def test_finetuning_on_a_new_task(project, outputs):
    seed = project / "first_letter" / "seed_0"
    task = {"name": "first_letter", "letters": ["a", "b", "c"]}
    assert config_of(project / "first_letter")["task"] == task
    assert_finetuned(project, seed, "first_letter", classes=3)
    assert len((seed / "predictions" / "dev.txt").read_text().split()) == 4
    answers = [json.loads(line) for line in outputs["predict"].splitlines()]
    assert [answer["text"] for answer in answers] == ["abc", "bcd abc"]
    assert all(answer["letter"] in "abc" for answer in answers)


def test_finetuning_on_a_new_row_of_the_table(project, outputs):
    seed = project / "length" / "seed_0"
    assert config_of(project / "length")["task"]["dataset"] == "length"
    assert_finetuned(project, seed, "glue", classes=2)
    predictions = (seed / "predictions" / "dev" / "Length.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[1] for line in predictions} <= {"short", "long"}


def assert_finetuned(project: pathlib.Path, seed: pathlib.Path, task: str, classes: int) -> None:
    """Two steps, which changed the pretrained encoder, and a score."""
    losses = [record["loss"] for record in metrics_of(seed) if "loss" in record]
    assert np.isfinite(losses).all()
    assert losses[-1] == pytest.approx(np.log(classes), rel=0.5)
    before = params_at(project / "run" / "checkpoints" / "2")
    after = params_at(seed / "checkpoints" / "2")
    assert after[f"{task}/classifier/dense/kernel"].shape == (8, classes)
    name = "encoder/word_embeddings/embedding"
    assert 0 < np.abs(after[name] - before[name]).max() < 0.1
    scores = json.loads((seed / "result.json").read_text())["scores"]
    assert 0 <= scores["dev/accuracy"] <= 1


@pytest.mark.parametrize(
    ("run", "checkpoint", "class_name", "head"),
    [
        ("run", "run/checkpoints/2", "MeanMixerForTokenCount", "share"),
        (
            "length",
            "length/seed_0/checkpoints/2",
            "MeanMixerForSequenceClassification",
            "classifier",
        ),
    ],
)
def test_export_and_import(run, checkpoint, class_name, head, project, outputs):
    """The exported arrays have the names of the architecture; imported, they are the run's."""
    from safetensors.numpy import load_file

    params, exported = params_at(project / checkpoint), project / f"{run}-hf"
    config = config_of(exported)
    assert config["architectures"] == [class_name]
    assert (config["model_type"], config["mixing"]) == ("mean_mixer", "mean")
    assert (config["vocab_size"], config["dim"], config["init_std"]) == (64, 8, 0.5)
    path = "token_count/share" if head == "share" else "glue/classifier"
    assert_equal(
        load_file(exported / "model.safetensors"),
        {
            "mixer.words.weight": params["encoder/word_embeddings/embedding"],
            "mixer.pooler.weight": params["encoder/pooler/dense/kernel"].T,
            "mixer.pooler.bias": params["encoder/pooler/dense/bias"],
            f"{head}.weight": params[f"{path}/dense/kernel"].T,
            f"{head}.bias": params[f"{path}/dense/bias"],
        },
    )
    assert_equal(params_at(project / f"{run}-again" / "checkpoints" / "0"), params)
