"""Multi-task fine-tuning: both tasks are learned and scored, and errors are reported."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from bertjax import build
from bertjax import config as configs
from bertjax.commands import finetune
from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.profiling import dummy
from bertjax.runs import multitask
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint.manager import Checkpoints

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUBJECTS = ("the film", "this plot", "every scene", "her first film", "that story")
GOOD, BAD = ("is good", "was great", "seems fine"), ("is bad", "was poor", "seems dull")
SENTENCES = [f"{subject} {verdict}" for subject in SUBJECTS for verdict in (*GOOD, *BAD)]
SMALL = {
    "model.hidden_size": "16",
    "model.num_hidden_layers": "1",
    "model.num_attention_heads": "2",
    "model.intermediate_size": "32",
    "model.max_position_embeddings": "16",
    "model.initializer_range": "0.2",
    "model.precision": "float32",
    "data.phases": "()",
    "data.batch_size": "8",
}
TUNED = {
    "num_train_epochs": "12",
    "max_train_examples": "0",
    "data.max_seq_length": "16",
    "data.padded_lengths": "()",
    "data.eval_batch_size": "8",
    "optimizer.learning_rate": "0.01",
    "model.hidden_dropout_prob": "0.0",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    """SST-2: whether a verdict is good; CoLA: whether it is in the present tense."""
    folder = tmp_path_factory.mktemp("glue")
    for name in ("SST-2", "CoLA"):
        (folder / name).mkdir()
    for split in ("train", "dev"):
        good = [f"{text}\t{int(text.endswith(GOOD))}" for text in SENTENCES]
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *good]))
        now = [f"x\t{int(' was ' not in text)}\t\t{text}" for text in SENTENCES]
        (folder / "CoLA" / f"{split}.tsv").write_text("\n".join(now))
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> pathlib.Path:
    """A run with random weights."""
    run = tmp_path_factory.mktemp("runs") / "run"
    tokenizer = tokenizers.train(SENTENCES * 4, vocab_size=80)
    tokenizer.save(str(run / "tokenizer"))
    fields = SMALL | {"model.vocab_size": str(tokenizer.vocab_size)}
    config = configs.load_config(f"{ROOT}/configs/bert.py:tiny", fields.items())
    rows = dummy.random_batch(config, build.Phase(1, 8, 8))
    objectives = build.objectives(config.objectives, build.tokenizer_fields(config, tokenizer))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    trainer = build.trainer(config, pretrainer, build.make_mesh(config), rows)
    (run / "config.json").write_text(configs.to_json(config))
    with Checkpoints(run) as checkpoints:
        checkpoints.save(trainer.create_state(), step=1)
    return run


def job_of(data, pretrained, workdir, tasks="cola+sst2", **fields):
    fields = TUNED | fields
    recipe = configs.load_config(f"{ROOT}/configs/glue.py:{tasks},tiny", fields.items())
    return multitask.prepare(recipe, init=str(pretrained), data=str(data), workdir=str(workdir))


@pytest.mark.slow
def test_two_tasks_are_learned_by_one_encoder(data, pretrained, tmp_path, capsys):
    overrides = itertools.chain.from_iterable(
        (f"--config.{name}", value) for name, value in TUNED.items()
    )
    workdir = tmp_path / "both"
    files = ("--init", str(pretrained), "--data", str(data), "--workdir", str(workdir))
    finetune.main(["--config", f"{ROOT}/configs/glue.py:cola+sst2,tiny", *files, *overrides])
    printed = capsys.readouterr().err
    assert "cola+sst2: train 60, cola/train 30, cola/dev 30, sst2/train 30, sst2/dev 30" in printed
    assert "new: cola/classifier/dense/bias" in printed
    results = json.loads((workdir / "results.json").read_text())
    assert results["steps"] == 12 * 2 * 4
    (seed,) = results["each_seed"]
    scores = seed["scores"]
    assert scores["cola/dev/matthews"] > 0.7
    assert scores["sst2/dev/accuracy"] > 0.8
    both = scores["cola/dev/score"], scores["sst2/dev/score"]
    assert scores["dev/score"] == pytest.approx(np.mean(both))
    for name in ("CoLA", "SST-2"):
        written = (workdir / "predictions" / "dev" / f"{name}.tsv").read_text()
        assert len(written.splitlines()) == len(SENTENCES) + 1


@pytest.mark.parametrize(
    ("tasks", "fields", "message"),
    [
        ("rte+rte", {}, "expected distinct tasks"),
        ("cola+rte", {"choose_epoch": "best"}, "choose_epoch is not supported for several tasks"),
        ("cola+rte", {}, "no RTE/ in "),
    ],
)
def test_user_errors_are_reported(tasks, fields, message, data, pretrained, tmp_path):
    with pytest.raises(UserError, match=message):
        job_of(data, pretrained, tmp_path, tasks, **fields)
