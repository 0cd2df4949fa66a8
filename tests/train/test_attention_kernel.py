"""Fused attention kernels in whole training steps: on a mesh, and with microbatches."""

import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.layers.attention_kernels import log_kernel_choice
from bertjax.pretrainer import Pretrainer
from bertjax.profiling import dummy
from bertjax.train.sharding import to_global

pytestmark = pytest.mark.slow

CHANGES = (
    *("model.vocab_size=97", "model.hidden_size=32", "model.intermediate_size=48"),
    *("model.attention_probs_dropout_prob=0", "model.precision=float32"),
    *("data.batch_size=8", "data.max_seq_length=128", "optimizer.warmup_steps=1"),
    "optimizer.learning_rate=1e-2",
)
BERT = ("configs/bert.py:tiny", "data.phases=()")
GPT = ("configs/gpt2.py:tiny", "data.format=packed-apart", "data.microbatches=1")
"""A padding mask; and a causal mask of packed documents."""
DROPOUT = (*BERT, "model.attention_probs_dropout_prob=0.5")


def losses(file, *changes):
    overrides = [change.split("=") for change in (*CHANGES, *changes)]
    config = load_config(file, overrides)
    (phase,) = build.phases(config)
    mesh = build.make_mesh(config, [phase])
    objectives = build.objectives(config.objectives, build.tokenizer_fields(config))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = dummy.random_batch(config, phase)
    if "pack_ids" in rows:
        rows["pack_ids"] = 1 + np.arange(8 * 128, dtype=np.int32).reshape(8, 128) % 128 // 50
    trainer = build.trainer(config, pretrainer, mesh, rows, phases=[phase])
    state, found = trainer.create_state(), []
    for _ in range(3):
        state, metrics = trainer.train_step(state, to_global(rows, mesh))
        found.append(float(metrics["loss"]))
    return found


@pytest.fixture(scope="module")
def by_products():
    return {model: losses(*model) for model in (BERT, GPT, DROPOUT)}


@pytest.mark.parametrize(
    ("model", "kernel", "changes"),
    [
        (BERT, "splash", ("mesh.data=2", "mesh.tensor=2", "mesh.fsdp=2", "model.remat=full")),
        (GPT, "splash", ("mesh.data=4", "mesh.tensor=2", "data.microbatches=2")),
        (DROPOUT, "pallas", ("mesh.data=2", "mesh.tensor=2", "mesh.fsdp=2", "data.microbatches=2")),
    ],
)
def test_training_with_a_kernel_equals_training_without(model, kernel, changes, by_products):
    lines, expected = [], by_products[model]
    with log_kernel_choice(lines.append):
        found = losses(*model, f"mesh.attention_kernel={kernel}", *changes)
    assert lines == [f"attention: {kernel}: requested"]
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    assert expected[2] < expected[0]
