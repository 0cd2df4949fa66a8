"""Scores depend only on the model and the examples: not on batches, padding, devices or hosts."""

import importlib.util
import json
import pathlib
import shutil
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax.layers.packed_rows import PackedEncoding
from bertjax.runs import finetune, finetune_job
from bertjax.runtime.interrupt import Interrupt
from bertjax.tokenizers import tokenizer

SCRIPT = pathlib.Path(__file__).with_name("small_tasks.py")
_SPECIFICATION = importlib.util.spec_from_file_location("small_tasks", SCRIPT)
tasks = importlib.util.module_from_spec(_SPECIFICATION)
_SPECIFICATION.loader.exec_module(tasks)


TASKS = list(tasks.RECIPES)
ONE_LENGTH = {"max_seq_length": 64, "padded_lengths": (64,)}
SHARE_RIGHT = {"rte": "accuracy", "squad2": "exact", "ner": "accuracy", "race": "accuracy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tasks")
    tasks.write(made)
    return made


@pytest.fixture(scope="module")
def usual(folder):
    """Scores with batches of 16 sequences on one device; computed once per task."""
    made = {}

    def of(task):
        if task not in made:
            out = folder / "usual" / task
            made[task] = tasks.evaluate(folder, task, out, eval_batch_size=16, **ONE_LENGTH)
        return made[task]

    return of


def assert_same(found, expected):
    assert found["predictions"] == expected["predictions"]
    assert found["scores"] == pytest.approx(expected["scores"], abs=1e-4)
    assert len(set(map(str, expected["predictions"].values()))) > 1


@pytest.mark.parametrize("task", TASKS)
def test_scores_do_not_depend_on_the_batch_size(task, folder, usual, tmp_path):
    assert_same(
        tasks.evaluate(folder, task, tmp_path, eval_batch_size=4, **ONE_LENGTH), usual(task)
    )


@pytest.mark.parametrize("task", TASKS)
def test_scores_do_not_depend_on_padding(task, folder, usual, tmp_path):
    lengths = {"max_seq_length": 64, "padded_lengths": (40, 52)}
    found = tasks.evaluate(folder, task, tmp_path, eval_batch_size=16, **lengths)
    assert_same(found, usual(task))
    assert found["batches"].padded_lengths == (40, 52, 64)


@pytest.mark.parametrize("task", TASKS)
def test_losses_do_not_depend_on_packing(task, folder):
    dataset, pretrainer, params = tasks.prepare(folder, task, ONE_LENGTH | {"packed_examples": 8})
    _, batch = next(dataset.batches["train"].training_batches())
    packed = pretrainer.clone(encode=PackedEncoding(8))
    assert batch["packed_tokens"].shape[1] < 64

    @jax.jit
    def losses(variables, batch):
        return [module.apply(variables, batch, train=False) for module in (packed, pretrainer)]

    jax.tree.map(
        lambda *values: np.testing.assert_allclose(*values, rtol=1e-4),
        *losses({"params": params}, batch),
    )


@pytest.mark.parametrize("task", TASKS)
def test_scores_do_not_depend_on_the_number_of_devices(task, folder, usual, tmp_path):
    found = tasks.evaluate(folder, task, tmp_path, devices=8, eval_batch_size=16, **ONE_LENGTH)
    assert_same(found, usual(task))


@pytest.mark.parametrize("task", TASKS)
def test_predictions_have_the_names_of_their_examples(task, folder, usual, tmp_path):
    """Another order of the examples gives the same predictions, in that order."""
    tasks.write(tmp_path, backwards=True)
    found = tasks.evaluate(tmp_path, task, tmp_path / "out", eval_batch_size=16, **ONE_LENGTH)
    assert_same(found, usual(task))
    assert list(found["predictions"]) == list(usual(task)["predictions"])[::-1]


@pytest.mark.parametrize("task", TASKS)
def test_each_example_counts_once_with_a_short_last_batch(task, usual):
    """Batches of 16 do not divide the examples; correct answers are counted by hand."""
    found = usual(task)
    assert found["batches"].num_examples % 16
    assert len(found["predictions"]) == tasks.SIZE
    right = RIGHT[task](found["predictions"])
    assert found["scores"][SHARE_RIGHT[task]] == pytest.approx(sum(right) / len(right))


def _right_answers(captured):
    """Count correct answers, without case; an empty text is correct for no answer."""
    for number in range(tasks.SIZE):
        words = f"{tasks.text(number)} {tasks.text(number + 1)}".split()
        yield captured[f"q{number}"].lower() == (words[2].lower() if number % 4 else "")


RIGHT = {
    "rte": lambda captured: [
        label == ("not_entailment" if int(name) % 3 == 0 else "entailment")
        for name, label in captured.items()
    ],
    "squad2": lambda captured: list(_right_answers(captured)),
    "ner": lambda captured: [
        tag == tasks.TAGS.get(word, "O")
        for words, tags in captured.items()
        for word, tag in zip(words.split(), tags, strict=True)
    ],
    "race": lambda captured: [
        letter == "ABCD"[number % 4] for number, letter in enumerate(captured.values())
    ],
}


@pytest.fixture(scope="module")
def run(folder, random_run):
    """A pretrained encoder."""
    return random_run(tokenizer.load(folder / "tokenizer"))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["squad2", "ner", "race"])
def test_the_same_seed_gives_the_same_scores(task, folder, run, tmp_path):
    recipe = tasks.recipe(task, {"eval_batch_size": 8, **ONE_LENGTH})
    recipe.num_train_epochs = 1
    data, workdir = tasks.where(folder, task), tmp_path / "run"
    job = finetune_job.prepare(recipe, init=str(run), data=data, workdir=str(workdir))
    results, files = [], []
    for _ in range(2):
        results.append(finetune.train_seed(job, 3, Interrupt()))
        written = sorted((job.folder(3) / "predictions").rglob("*.*"))
        files.append([path.read_bytes() for path in written])
        shutil.rmtree(workdir)
    assert results[0] == results[1]
    assert files[0] == files[1] != []


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_hosts(folder, usual, command_environment, xla_flags):
    """Two real processes with two devices each, and this one with one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = command_environment | {
        "XLA_FLAGS": xla_flags(2),
        "GLOO_LOG_LEVEL": "ERROR",
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(port), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for host in hosts:
            output, _ = host.communicate(timeout=300)
            assert host.returncode == 0, output
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    for task in TASKS:
        for rank in (0, 1):
            found = json.loads((folder / f"host{rank}" / f"{task}.json").read_text())
            assert_same(found, usual(task))
