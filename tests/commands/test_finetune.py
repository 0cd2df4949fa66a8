"""bertjax finetune, on a task that a small model learns: positive and negative reviews."""

import itertools
import json
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bertjax import build, cli
from bertjax import config as configs
from bertjax.commands import finetune
from bertjax.errors import UserError
from bertjax.pretrainer import Pretrainer
from bertjax.profiling import dummy
from bertjax.runs import finetune as runs_finetune
from bertjax.runs import finetune_job
from bertjax.runs import results as runs_results
from bertjax.runtime.interrupt import Interrupt
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint import origin, restore
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.trees import fingerprint
from bertjax.train.metric_records import read_metrics

SUBJECTS = ("the film", "this plot", "every scene", "her first film", "a long and slow scene")
VERDICTS = {"1": ("is good", "was great", "seems fine"), "0": ("is bad", "was poor", "seems dull")}
ROWS = [
    (f"{subject} {verdict}", label)
    for subject, (label, verdicts) in itertools.product(SUBJECTS, VERDICTS.items())
    for verdict in verdicts
]

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    """SST-2 data: 30 training sentences, 10 with labels for evaluation, 5 without labels."""
    folder = tmp_path_factory.mktemp("glue") / "SST-2"
    folder.mkdir()
    lines = [f"{text}\t{label}" for text, label in ROWS]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]))
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *lines[::3]]))
    tested = [f"{10 * i}\t{text}" for i, (text, _) in enumerate(ROWS[::6])]
    (folder / "test.tsv").write_text("\n".join(["index\tsentence", *tested]))
    return folder.parent


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> pathlib.Path:
    return save_random_run("bert.py:tiny", tmp_path_factory.mktemp("runs") / "pretrained")


def save_random_run(recipe: str, run: pathlib.Path) -> pathlib.Path:
    """The workdir of a pretraining run with one checkpoint of random weights."""
    tokenizer = tokenizers.train([text for text, _ in ROWS] * 4, kind="wordpiece", vocab_size=90)
    tokenizer.save(str(run / "tokenizer"))
    config = configs.load_config(
        f"configs/{recipe}",
        [(f"model.{name}", str(value)) for name, value in SMALL.items()]
        + [("model.vocab_size", str(tokenizer.vocab_size)), ("data.phases", "()"), ("seed", "11")],
    )
    rows = dummy.random_batch(config, build.Phase(1, 8, 8))
    objectives = build.objectives(config.objectives, build.tokenizer_fields(config, tokenizer))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    trainer = build.trainer(config, pretrainer, build.make_mesh(config), rows)
    (run / "config.json").write_text(configs.to_json(config))
    with Checkpoints(run) as checkpoints:
        checkpoints.save(trainer.create_state(), step=7, metrics={"held_out/mlm_loss": 4.0})
    return run


def arguments(data, init, workdir, **overrides) -> list[str]:
    fields = {
        "num_train_epochs": 10,
        "log_every": 1,
        "max_train_examples": 0,
        "data.max_seq_length": 16,
        "data.padded_lengths": "()",
        "data.eval_batch_size": 8,
        "optimizer.learning_rate": 2e-2,
        "model.hidden_dropout_prob": 0.05,
        "model.attention_probs_dropout_prob": 0.0,
    } | overrides
    words = ["--config", "configs/glue.py:sst2,tiny", "--init", str(init), "--data", str(data)]
    words += ["--workdir", str(workdir)]
    return words + [f"--config.{name}={value}" for name, value in fields.items()]


def job_of(data, init, workdir, **overrides) -> finetune_job.Job:
    rest, changes = configs.split_overrides(arguments(data, init, workdir, **overrides))
    recipe = configs.load_config(rest[1], changes)
    return finetune_job.prepare(recipe, init=str(init), data=str(data), workdir=str(workdir))


@pytest.fixture(scope="module")
def two_seeds(run_bertjax, data, pretrained, tmp_path_factory):
    """The output of the command with two seeds: (workdir, standard output)."""
    workdir = tmp_path_factory.mktemp("runs") / "sst2"
    words = arguments(data, pretrained, workdir, keep_checkpoints="true")
    output = run_bertjax("finetune", *words, "--seeds", 2)
    assert output.returncode == 0, output.stderr
    return workdir, output


def test_the_config_of_a_run_is_a_recipe(two_seeds, data, pretrained, tmp_path):
    recipe = configs.load_config(str(two_seeds[0] / "config.json"))
    job = finetune_job.prepare(
        recipe, init=str(pretrained), data=str(data), workdir=str(tmp_path / "again")
    )
    assert configs.differences(recipe, job.config) == []


def test_scores_improve_and_are_printed(two_seeds):
    workdir, output = two_seeds
    results = json.loads((workdir / "results.json").read_text())
    assert results["status"] == "complete"
    assert [result["seed"] for result in results["each_seed"]] == [0, 1]
    assert results["over_seeds"]["dev/accuracy"]["min"] >= 0.9
    assert all(len(result["epochs"]) == 10 for result in results["each_seed"])
    assert results["epoch_rule"]["name"] == "last"
    assert [result["chosen_epoch"] for result in results["each_seed"]] == [10, 10]
    assert results["examples"] == {"train": 30, "dev": 10, "test": 5}
    header, *rows = [line.split() for line in output.stdout.splitlines()]
    assert header == ["seed", "epoch", "dev/accuracy", "dev/score"]
    assert [row[0] for row in rows] == ["0", "1", "median", "min", "max", "std"]
    median = results["over_seeds"]["dev/accuracy"]["median"]
    assert rows[2][1:] == [f"{median:.4f}", f"{median:.4f}"]
    assert "new: glue/classifier/dense/bias, glue/classifier/dense/kernel" in output.stderr
    assert "\x1b" not in output.stderr + output.stdout
    # The second seed uses the program of the first one.
    assert output.stderr.count("compiling   the training step\ncompiled    in ") == 1
    assert output.stderr.count("\ncompil") == 2


def test_the_initial_checkpoint_is_logged(two_seeds, pretrained):
    workdir, _ = two_seeds
    results = json.loads((workdir / "results.json").read_text())
    assert results["init"]["name"] == str(pretrained)
    assert results["init"]["step"] == 7
    encoder = origin.resolve(str(pretrained)).description()["encoder"]
    assert results["init"]["encoder"] == encoder
    assert json.loads((workdir / "summary.json").read_text())["init"]["encoder"] == encoder


def test_prediction_files_have_the_scored_predictions(two_seeds):
    workdir, _ = two_seeds
    results = json.loads((workdir / "results.json").read_text())
    for result in results["each_seed"]:
        path = workdir / f"seed_{result['seed']}" / "predictions" / "dev" / "SST-2.tsv"
        header, *lines = [line.split("\t") for line in path.read_text().splitlines()]
        assert header == ["index", "prediction"]
        right = [
            predicted == label for (_, predicted), (_, label) in zip(lines, ROWS[::3], strict=True)
        ]
        assert len(lines) == 10
        assert np.mean(right) == pytest.approx(result["scores"]["dev/accuracy"])
    test = (workdir / "predictions" / "test" / "SST-2.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in test] == ["index", "0", "10", "20", "30", "40"]


def test_predict_with_a_seed_that_kept_its_checkpoints(two_seeds, tmp_path, capsys):
    """JSON and text input give the predictions of the dev set in training."""
    lines = [text for text, _ in ROWS[::3]]
    lines[0] = json.dumps({"sentence": lines[0]})
    (tmp_path / "inputs.txt").write_text("\n".join([*lines, ""]))
    offered = shlex.split(two_seeds[1].stderr.splitlines()[-1])
    run = two_seeds[0] / "seed_0"
    assert offered == ["next", "bertjax", "predict", "--model", str(run), "--input", "TEXTS"]
    words = [*offered[2:-1], str(tmp_path / "inputs.txt")]
    assert cli.main([*words, "--batch_size", "4"]) == 0
    output = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["sentence"] for row in output] == [text for text, _ in ROWS[::3]]
    expected = (run / "predictions" / "dev" / "SST-2.tsv").read_text().split()[3::2]
    assert [row["label"] for row in output] == expected
    for row in output:
        assert sum(row["probabilities"].values()) == pytest.approx(1.0)
        assert max(row["probabilities"], key=row["probabilities"].get) == row["label"]


@pytest.mark.parametrize(
    ("init", "line", "message"),
    [
        ("seed_1", "one\ttwo", "inputs.txt:1: got 2 field(s), expected 1 separated by tabs (sent"),
        ("seed_1", '{"text": "a"}', 'expected a JSON object with "sentence" (a string)'),
        ("seed_1", '{"sentence": 1}', "inputs.txt:1: expected a string for each of sentence"),
        ("pretrained", "one", "has no task: expected a run of bertjax finetune"),
    ],
)
def test_predict_refuses_invalid_lines_and_runs_in_one_line(
    two_seeds, pretrained, init, line, message, tmp_path, capsys
):
    (tmp_path / "inputs.txt").write_text(f"{line}\n")
    run = pretrained if init == "pretrained" else two_seeds[0] / init
    words = ["predict", "--model", str(run), "--input", str(tmp_path / "inputs.txt")]
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_a_finished_run_is_not_repeated(two_seeds, data, pretrained, tmp_path, capsys):
    workdir, output = two_seeds
    before = (workdir / "results.json").read_text()
    (tmp_path / "moved").symlink_to(data)
    finetune.main([*arguments(tmp_path / "moved", pretrained, workdir), "--seeds", "2"])
    captured = capsys.readouterr()
    assert captured.out == output.stdout
    assert captured.err.splitlines()[-1] == output.stderr.splitlines()[-1]
    assert "step 40/40" not in captured.err
    after = (workdir / "results.json").read_text()
    assert json.loads(after)["each_seed"] == json.loads(before)["each_seed"]


def test_seeds_differ_from_the_first_step(two_seeds):
    losses = [
        [
            record["loss"]
            for record in read_metrics(two_seeds[0] / f"seed_{seed}")
            if "loss" in record
        ]
        for seed in (0, 1)
    ]
    assert len(losses[0]) == 40
    assert all(first != second for first, second in zip(*losses, strict=True))


@pytest.mark.slow
def test_interrupted_seeds_equal_uninterrupted_ones(data, pretrained, tmp_path, stop_after):
    """Stops within an epoch, at its end, in predictions of dev and test, at the last but one step.

    And in the last evaluation.
    """
    changes = {"num_train_epochs": 3, "choose_epoch": "best", "keep_checkpoints": "true"}
    whole = job_of(data, pretrained, tmp_path / "whole", **changes)
    expected = runs_finetune.train_seed(whole, 3, Interrupt())
    assert [epoch["step"] for epoch in expected["epochs"]] == [4, 8, 12]
    parts = job_of(data, pretrained, tmp_path / "parts", **changes)
    # Epoch 1 has two batches of dev and one of test, epoch 2, which is not better, two of dev.
    for calls, step in ((2, 2), (2, 4), (2, 4), (3, 4), (3 + 4 + 2 + 3, 11), (2, 12)):
        assert runs_finetune.train_seed(parts, 3, stop_after(calls)) is None
        assert runs_results.read(parts.folder(3)) is None
        assert checkpoint_folder.steps(parts.folder(3) / "checkpoints")[-1] == step
    assert runs_finetune.train_seed(parts, 3, Interrupt()) == expected
    for path in (tmp_path / "whole").rglob("*.tsv"):
        twin = tmp_path / "parts" / path.relative_to(tmp_path / "whole")
        assert twin.read_bytes() == path.read_bytes()
    # Killed between the last checkpoint and the result, there is nothing left to train.
    (parts.folder(3) / "result.json").unlink()
    records = read_metrics(parts.folder(3))
    assert runs_finetune.train_seed(parts, 3, Interrupt()) == expected
    assert read_metrics(parts.folder(3)) == records


@pytest.mark.slow
def test_a_killed_run_resumes_and_more_seeds_can_be_added(
    command_environment, root, data, pretrained, two_seeds, tmp_path
):
    """Killed within an epoch, it continues from the checkpoint of the step before."""
    words = arguments(data, pretrained, tmp_path, checkpoint_every=1)
    command = [sys.executable, "-m", "bertjax", "finetune", *words, "--seeds"]
    options = {"env": command_environment, "cwd": root}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "2"], **options) as process:
        while not list(tmp_path.glob("seed_1/checkpoints/*/integrity.json")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    first = tmp_path / "seed_0" / "result.json"
    written = first.stat().st_mtime_ns
    assert not (tmp_path / "seed_1" / "result.json").exists()
    again = subprocess.run([*command, "3"], **options, check=True)
    assert first.stat().st_mtime_ns == written
    assert again.stderr.count(b"step 40/40  loss") == 2
    assert again.stderr.count(b"step  1/40  loss") == 1
    results = json.loads((tmp_path / "results.json").read_text())["each_seed"]
    whole = json.loads((two_seeds[0] / "results.json").read_text())["each_seed"]
    assert [result["seed"] for result in results] == [0, 1, 2]
    assert results[:2] == whole


def test_the_encoder_is_initialised_from_the_pretrained_one(data, pretrained, tmp_path):
    def init_params(init):
        job = job_of(data, init, tmp_path)
        state = finetune_job.init_state(job, job.trainer(0))
        return jax.tree.map(np.asarray, state.params)

    taken, fresh = init_params(pretrained), init_params(f"random:{pretrained}")
    expected = origin.resolve(str(pretrained)).description()["encoder"]
    assert fingerprint(taken["encoder"]) == expected
    assert fingerprint(fresh["encoder"]) != expected
    assert fingerprint(taken["glue"]) == fingerprint(fresh["glue"])


@pytest.mark.slow
def test_only_the_discriminator_of_an_electra_is_fine_tuned(data, tmp_path):
    run = save_random_run("electra.py:tiny", tmp_path / "electra")
    checkpoint = run / "checkpoints" / "7"
    assert set(restore.load_numpy(checkpoint, "params")) == {"encoder", "generator", "rtd"}
    job = job_of(data, run, tmp_path / "never")
    state = finetune_job.init_state(job, job.trainer(0))
    assert set(state.params) == {"encoder", "glue"}
    assert set(state.params["glue"]) == {"pooler", "classifier"}
    expected = fingerprint(restore.load_numpy(checkpoint, "params/encoder"))
    assert fingerprint(jax.tree.map(np.asarray, state.params["encoder"])) == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"choose_epoch": "first"}, r"choose_epoch: got 'first', expected one of 'last', 'best'"),
        ({"data.max_seq_length": 32}, "max_seq_length: got 32, expected at most 24, the positions"),
        ({"num_train_epochs": 0}, r"config.num_train_epochs: got 0, expected an integer >= 1"),
        ({"data.batch_size": 12}, r"batch_size=12 does not divide into data=8"),
        ({"data.eval_batch_size": 9}, r"batch_size=9 does not divide into data=8"),
        ({"task.dataset": "sst"}, r"config.task.dataset: got 'sst', .*; did you mean 'sst2'\?"),
    ],
)
def test_mismatches_are_one_line(data, pretrained, tmp_path, overrides, message, all_devices):
    with pytest.raises(UserError, match=message) as caught:
        job_of(data, pretrained, tmp_path, **overrides)
    assert "\n" not in str(caught.value)


def test_a_workdir_of_another_config_or_encoder_is_refused(data, pretrained, two_seeds):
    workdir, _ = two_seeds
    words = arguments(data, pretrained, workdir, **{"optimizer.learning_rate": 3e-2})
    with pytest.raises(UserError, match=r"another config \(optimizer.learning_rate: 0.02 in the f"):
        finetune.main(words)
    with pytest.raises(UserError, match=r"another config \(.*init.encoder: "):
        finetune.main(arguments(data, f"random:{pretrained}", workdir))


def test_no_seeds_are_refused(data, pretrained, tmp_path):
    with pytest.raises(UserError, match="--seeds: got 0, expected an integer >= 1"):
        finetune.main([*arguments(data, pretrained, tmp_path), "--seeds", "0"])


def copy_with_config(run: pathlib.Path, folder: pathlib.Path, change) -> pathlib.Path:
    """A copy of a run with a changed config."""
    folder.mkdir()
    content = json.loads((run / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))
    for name in ("tokenizer", "checkpoints"):
        (folder / name).symlink_to(run / name)
    return folder


def test_an_encoder_of_another_model_is_refused_with_a_table(data, pretrained, tmp_path):
    def narrower(config):
        config["model"]["intermediate_size"] = 24

    run = copy_with_config(pretrained, tmp_path / "other", narrower)
    with pytest.raises(UserError, match=r"arrays of the encoder do not match") as caught:
        job_of(data, run, tmp_path / "w")
    rows = str(caught.value).splitlines()[1:]
    assert len(rows) == 3
    assert all("differs" in row and "feed_forward" in row for row in rows)


def test_a_tokenizer_of_another_size_or_none_is_refused(data, pretrained, tmp_path):
    def bigger(config):
        config["model"]["vocab_size"] += 1

    with pytest.raises(UserError, match=r"the tokenizer's \d+ tokens"):
        job_of(data, copy_with_config(pretrained, tmp_path / "other", bigger), tmp_path / "w")
    run = copy_with_config(pretrained, tmp_path / "without", lambda config: None)
    (run / "tokenizer").unlink()
    with pytest.raises(UserError, match=r"the tokenizer of .*without is neither in"):
        job_of(data, run, tmp_path / "w")


def test_user_errors_are_one_line_with_status_2(run_bertjax, data, pretrained, tmp_path):
    output = run_bertjax("finetune", *arguments(data, "random", tmp_path / "w"))
    assert output.returncode == 2
    assert output.stderr.startswith("bertjax finetune: error: got random without a run")
    assert output.stderr.count("\n") == 1
    assert not (tmp_path / "w").exists()
