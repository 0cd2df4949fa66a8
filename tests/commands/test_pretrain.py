"""bertjax pretrain: runs, kills, extensions and user errors."""

import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import time

import pytest

from bertjax import build
from bertjax.commands import pretrain
from bertjax.config import load_config, split_overrides
from bertjax.runs.workdir import claim
from bertjax.train.starts import read_starts

STEPS = 60
TINY = {
    "num_train_steps": STEPS,
    "log_every": 5,
    "eval_every": 20,
    "eval_examples": 64,
    "checkpoint_every": 4,
    "model.vocab_size": 600,
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 32,
    "model.max_position_embeddings": 32,
    "model.hidden_dropout_prob": 0.1,
    "model.precision": "float32",
    "data.max_seq_length": 32,
    "data.batch_size": 8,
    "optimizer.warmup_steps": 5,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """English text: the topics of Python's own help, one document each."""
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("text") / "topics.txt"
    documents = [" ".join(topic.split()) for _, topic in sorted(topics.items())]
    path.write_text("\n\n".join(documents[:40]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory, run_bertjax):
    """A tokenizer and a corpus, created with the commands."""
    folder = tmp_path_factory.mktemp("corpus")
    made = run_bertjax(
        "tokenizer", "train", "--input", text, "--kind", "wordpiece", "--vocab_size", 600,
        "--output", folder / "vocab",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    made = run_bertjax(
        "prepare", "--input", text, "--tokenizer", folder / "vocab", "--output", folder / "corpus",
        "--validation_fraction", 0.2,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return folder / "corpus"


def words(corpus, workdir, **changes):
    """Arguments of `bertjax` for a run that takes seconds."""
    fields = TINY | {"data.corpus": corpus} | changes
    if "data.phases" in changes:  # each has its own
        del fields["data.max_seq_length"], fields["data.batch_size"]
    overrides = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["pretrain", "--config", "configs/quickstart.py", "--workdir", workdir, *overrides]


def fingerprints(run_bertjax, workdir):
    """SHA-256 of parameters and optimizer state, as printed by `inspect`."""
    printed = run_bertjax("inspect", workdir / "checkpoints" / str(STEPS), "--json")
    assert printed.returncode == 0, printed.stderr
    found = json.loads(printed.stdout)
    return {name: value for name, value in found.items() if "sha256" in name}


def losses(workdir):
    """Loss by step, from metrics.jsonl."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def uninterrupted_process(corpus, tmp_path_factory, run_bertjax):
    """A run's folder, and the output of its process, with the names of all imported modules."""
    workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
    done = run_bertjax(*words(corpus, workdir), env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0, done.stderr
    return workdir, done.stderr


@pytest.fixture(scope="module")
def uninterrupted(uninterrupted_process):
    return uninterrupted_process[0]


def test_training_from_a_corpus_imports_no_library_of_other_commands(uninterrupted_process):
    workdir, printed = uninterrupted_process
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)", printed, re.MULTILINE)
    others = {"tensorflow_datasets", "sklearn", "scipy", "pandas", "torch._C", "safetensors"}
    others |= {"tensorboardX"}
    assert "bertjax" in names
    assert not others & set(names)
    assert not (workdir / "tensorboard").exists()


def test_the_start_is_recorded(uninterrupted):
    (start,) = read_starts(uninterrupted)
    assert start["command"].startswith("bertjax pretrain --config ")
    assert (start["first_step"], start["num_devices"]) == (0, 1)


def test_the_summary_has_the_unigram_baseline(uninterrupted):
    summary = json.loads((uninterrupted / "summary.json").read_text())
    assert summary["steps"] == STEPS
    assert summary["tokens"] == STEPS * 8 * 32
    assert summary["status"] == "complete"
    assert 0 < summary["mlm_loss"] < 7
    assert 0 < summary["unigram_loss"] < 7
    assert len(summary["guesses"]) == 3


def test_only_predicted_tokens_have_a_perplexity(uninterrupted):
    lines = (uninterrupted / "metrics.jsonl").read_text().splitlines()
    (*_, held_out) = (row for row in map(json.loads, lines) if "held_out/mlm/loss" in row)
    expected = math.exp(held_out["held_out/mlm/loss"])
    assert held_out["held_out/mlm/perplexity"] == pytest.approx(expected)
    assert "held_out/sentence_pair/loss" in held_out
    assert "held_out/sentence_pair/perplexity" not in held_out


def test_a_second_start_reports_a_complete_run(uninterrupted, corpus, run_bertjax):
    again = run_bertjax(*words(corpus, uninterrupted))
    assert again.returncode == 0, again.stderr
    assert "complete" in again.stdout
    assert "--config.num_train_steps=120" in again.stdout


def test_a_moved_corpus_changes_nothing_and_another_one_is_refused(
    uninterrupted, corpus, tmp_path, root, run_bertjax
):
    workdir = shutil.copytree(uninterrupted, tmp_path / "run")
    shutil.rmtree(workdir / "checkpoints" / str(STEPS))
    (workdir / "summary.json").unlink()
    before = (workdir / "config.json").read_bytes()
    other = shutil.copytree(corpus, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"fingerprint": "e" * 64}))
    refused = run_bertjax(*words(other, workdir))
    assert refused.returncode == 2
    assert "56 was written with another corpus: got fingerprint" in refused.stderr
    assert (workdir / "config.json").read_bytes() == before

    moved = os.path.relpath(shutil.copytree(corpus, tmp_path / "moved"), root)
    done = run_bertjax(*words(f"{moved}/", workdir, **{"tokenizer.path": f"{moved}/tokenizer"}))
    assert done.returncode == 0, done.stderr
    assert "resuming from step 56" in done.stderr
    assert fingerprints(run_bertjax, workdir) == fingerprints(run_bertjax, uninterrupted)
    assert losses(workdir) == losses(uninterrupted)
    refused = run_bertjax(*words(other, workdir))
    assert refused.returncode == 2
    assert "was trained with another corpus: got fingerprint eeeeeeeeeeeeeeee" in refused.stderr
    assert json.loads((workdir / "config.json").read_text())["data"]["corpus"] == f"{moved}/"


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(
    uninterrupted, corpus, tmp_path, start_bertjax, run_bertjax
):
    workdir = tmp_path / "run"
    moments = random.Random(0)
    for _ in range(2):
        process = start_bertjax(*words(corpus, workdir))
        # Past the first line of progress, so that kills hit training and saving, not imports.
        for line in process.stderr:
            if line.startswith("step"):
                break
        time.sleep(moments.uniform(0, 0.6))
        process.kill()
        process.communicate()
    done = run_bertjax(*words(corpus, workdir))
    assert done.returncode == 0, done.stderr
    assert fingerprints(run_bertjax, workdir) == fingerprints(run_bertjax, uninterrupted)
    assert losses(workdir) == losses(uninterrupted)


@pytest.mark.slow
def test_a_signal_finishes_the_step_saves_and_prints_how_to_resume(
    uninterrupted, corpus, tmp_path, start_bertjax, run_bertjax
):
    workdir = tmp_path / "run"
    process = start_bertjax(*words(corpus, workdir))
    for line in process.stderr:
        if line.startswith("step"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate()[1]
    if process.returncode:  # a run of a second may end before the signal arrives
        assert process.returncode == 128 + signal.SIGINT, rest
        command = shlex.join(["bertjax", "pretrain", *map(str, words(corpus, workdir)[1:])])
        assert f"stopped and saved; the same command resumes it: {command}\n" in rest
    done = run_bertjax(*words(corpus, workdir))
    assert done.returncode == 0, done.stderr
    assert fingerprints(run_bertjax, workdir) == fingerprints(run_bertjax, uninterrupted)


@pytest.mark.slow
def test_phases_of_two_lengths_run_on_a_mesh(corpus, tmp_path, run_bertjax):
    done = run_bertjax(
        *words(
            corpus,
            tmp_path / "run",
            **{
                "data.phases": "((4,16,16),(2,32,8,1))",
                "num_train_steps": 6,
                "eval_every": 0,
                "mesh.data": 2,
                "mesh.fsdp": 2,
                "mesh.tensor": 2,
                "data.microbatches": 2,
                "checkpoint_every": 0,
            },
        ),
        devices=8,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["tokens"] == 6 * 256
    assert "4 steps of 16 x 16 tokens in 2 parts" in done.stderr
    assert "2 steps of 8 x 32 tokens, " in done.stderr


@pytest.mark.slow
def test_a_finished_run_is_extended_with_other_microbatches(corpus, tmp_path, run_bertjax):
    """For instance on fewer devices, or with less memory."""
    fields = {"optimizer.schedule": "constant", "log_every": 1}
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert run_bertjax(*words(corpus, whole, num_train_steps=12, **fields)).returncode == 0
    assert run_bertjax(*words(corpus, parted, num_train_steps=6, **fields)).returncode == 0
    fields |= {"data.microbatches": 4, "model.remat": "full", "model.unroll": 1}
    done = run_bertjax(*words(corpus, parted, num_train_steps=12, **fields))
    assert done.returncode == 0, done.stderr
    assert "resuming from step 6" in done.stderr
    assert json.loads((parted / "summary.json").read_text())["steps"] == 12
    assert losses(parted) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({"model.hidden_size": 18, "model.num_attention_heads": 4}, "equal heads; nearest: 16, 20"),
        ({"mesh.data": 3}, "config.mesh: got data=3"),
        ({"data.batch_size": 7, "mesh.data": 1, "data.microbatches": 2}, "nearest: 6, 8"),
        ({"model.name": "brt"}, "did you mean 'bert'"),
        ({"model.vocab_size": 601}, "set --config.model.vocab_size=600"),
        ({"data.corpus": "nowhere"}, "nowhere"),
        ({"optimizer.name": "adam"}, "did you mean 'adamw'"),
        ({"data.max_seq_length": 64}, "expected at most 32, the positions of"),
        ({"model.hidden_act": "gelo"}, "did you mean 'gelu'"),
    ],
)
def test_user_errors_are_one_line(changes, printed, corpus, tmp_path, run_bertjax):
    done = run_bertjax(*words(corpus, tmp_path / "run", **changes))
    assert done.returncode == 2, done.stderr
    assert printed in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "phases"),
    [
        (["--config.data.phases=()"], [(2_000_000, 128, 256)]),
        ([], [(900_000, 128, 256), (1_100_000, 512, 256)]),
    ],
)
def test_the_offered_extension_resumes_the_same_run(root, tmp_path, overrides, phases):
    """Also with a field derived from the number of steps, and with overrides."""
    path = tmp_path / "configs" / "own.py"
    path.parent.mkdir()
    path.write_text(
        (root / "configs" / "bert_base.py").read_text()
        + "\n_get = get_config\n\n\ndef get_config():\n    config = _get()\n"
        "    config.optimizer.warmup_steps = config.get_ref('num_train_steps') // 100\n"
        "    return config\n"
    )
    shutil.copy(root / "configs" / "common.py", path.parent)
    shutil.copy(root / "configs" / "bert.py", path.parent)
    own = ["--config", str(path), "--workdir", str(tmp_path / "run"), *overrides]
    own += ["--config.seed=7", "--config.data.corpus", "a corpus"]
    config = load_config(str(path), split_overrides(own)[1])
    folder = tmp_path / "run"
    claim(folder, json.loads(config.to_json())).release()
    (folder / "metrics.jsonl").write_text("{}\n")
    again = shlex.split(shlex.join(pretrain.extension(own, config, steps=1_000_000)))
    rest, overrides = split_overrides(again)
    assert rest == ["--config", str(path), "--workdir", str(folder)]
    longer = load_config(str(path), overrides)
    claim(folder, json.loads(longer.to_json())).release()
    assert build.phases(longer) == [build.Phase(*phase) for phase in phases]
    assert (longer.num_train_steps, longer.optimizer.warmup_steps) == (2_000_000, 10_000)


def test_a_run_with_a_budget_is_extended_by_a_larger_one():
    words = ["--config", "bert:tiny", "--config.budget_seconds=60", "--config.data.phases=()"]
    config = load_config("bert:tiny", split_overrides(words)[1])
    longer = load_config("bert:tiny", split_overrides(pretrain.extension(words, config, 7))[1])
    assert longer.budget_seconds == 120
    assert longer.num_train_steps == config.num_train_steps
