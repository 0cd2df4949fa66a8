"""Fine-tuning on groups of texts: stopped and resumed (invariant 3), and packed."""

import itertools
import json

import jax
import numpy as np
import pytest

from bertjax import config as configs
from bertjax.runs import finetune, finetune_job
from bertjax.runtime.interrupt import Interrupt
from bertjax.tokenizers import tokenizer as tokenizers
from bertjax.train.checkpoint import folder as checkpoint_folder
from bertjax.train.checkpoint.restore import load_numpy
from bertjax.train.checkpoint.trees import flatten_names

WORDS = ["mill", "river", "north", "old", "stone"]
ROWS = [
    {"query": a, "positive": f"{b} {a}", "negatives": [f"{b} {c}", c]}
    for a, b, c in itertools.permutations(WORDS, 3)
]
OVERRIDES = {
    "num_train_epochs": "2",
    "data.batch_size": "16",
    "data.microbatches": "2",
    "data.max_seq_length": "12",
    "data.padded_lengths": "()",
    "data.eval_batch_size": "8",
    "model.hidden_dropout_prob": "0.1",
    "model.precision": "float32",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("pairs", {}),
        ("pairs", {"data.packed_examples": "8", "data.max_seq_length": "16"}),
        ("cross_encoder", {"task.loss_type": "softmax"}),
        ("colbert", {"task.query_length": "6"}),
    ],
)
def test_a_run_that_is_stopped_in_both_epochs_equals_a_whole_one(
    random_run, tmp_path, stop_after, recipe, changes
):
    job = prepare(random_run, tmp_path, recipe, changes)
    result = finetune.train_seed(job, 1, Interrupt())
    assert [epoch["step"] for epoch in result["epochs"]] == [3, 6]
    expected = arrays(job.folder(1))
    job.folder(1).rename(tmp_path / "whole")
    batches = [*job.dataset.batches["dev"].evaluation_batches()]
    # After step 2, in the evaluation after step 3, and after step 5.
    for calls in (2, 2, len(batches) + 2):
        assert finetune.train_seed(job, 1, stop_after(calls)) is None
    assert finetune.train_seed(job, 1, Interrupt()) == result
    found = arrays(job.folder(1))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def prepare(random_run, tmp_path, recipe, changes):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    tokenizer = tokenizers.train([" ".join(WORDS)] * 4, kind="wordpiece", vocab_size=60)
    config = configs.load_config(f"{recipe}:tiny", OVERRIDES | changes)
    return finetune_job.prepare(
        config, init=str(random_run(tokenizer)), data=str(tmp_path / "rows.jsonl"), workdir=tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["cross_encoder", "colbert"])
def test_losses_of_groups_do_not_depend_on_packing(random_run, tmp_path, recipe):
    changes = {"data.packed_examples": "8", "data.max_seq_length": "16"}
    if recipe == "colbert":
        changes["task.query_length"] = "6"
    job = prepare(random_run, tmp_path, recipe, changes)
    state = finetune_job.init_state(job, job.trainer(0))
    batch = dict(job.example_batch)

    @jax.jit
    def loss(params, batch):
        return job.pretrainer.apply({"params": params}, batch, train=False)

    packed = loss(state.params, batch)
    slots = batch.pop("packed_tokens")
    assert slots.shape[1] < 16
    plain = loss(state.params, batch)
    jax.tree.map(lambda *values: np.testing.assert_allclose(*values, rtol=1e-4), packed, plain)


def arrays(folder):
    """The parameters and the optimizer's state after the last step."""
    last = folder / "checkpoints" / str(checkpoint_folder.steps(folder / "checkpoints")[-1])
    return flatten_names({part: load_numpy(last, part) for part in ("params", "opt_state")})
