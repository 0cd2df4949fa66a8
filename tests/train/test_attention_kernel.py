"""A kernel of attention in whole steps of training: on a mesh, and with a batch in parts."""

import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.interfaces import Pretrainer
from bertjax.layers.attention_kernels import told_to
from bertjax.train.sharding import to_global

CHANGES = (
    *("model.vocab_size=97", "model.hidden_size=32", "model.intermediate_size=48"),
    *("model.attention_probs_dropout_prob=0", "model.precision=float32", "data.phases=()"),
    *("data.batch_size=8", "data.max_seq_length=128", "optimizer.warmup_steps=1"),
    "optimizer.learning_rate=1e-2",
)


def losses(*changes):
    overrides = [change.split("=") for change in (*CHANGES, *changes)]
    config = load_config("configs/bert.py:tiny", overrides)
    (phase,) = build.phases(config)
    mesh = build.make_mesh(config, (phase.batch_size,), (phase.max_seq_length,))
    objectives = build.objectives(config.objectives, build.facts(config))
    pretrainer = Pretrainer(build.encoder(config.model), objectives)
    rows = build.random_rows(config, phase)
    trainer = build.trainer(config, pretrainer, mesh, rows)
    state, found = trainer.create_state(), []
    for _ in range(3):
        state, metrics = trainer.train_step(state, to_global(rows, mesh))
        found.append(float(metrics["loss"]))
    return found


@pytest.fixture(scope="module")
def by_products():
    return losses()


@pytest.mark.parametrize(
    "changes",
    [
        ("mesh.data=2", "mesh.tensor=2", "mesh.fsdp=2", "model.remat=full"),
        ("mesh.data=4", "mesh.tensor=2", "data.microbatches=2"),
    ],
)
def test_splash_learns_what_products_learn(changes, by_products):
    lines = []
    with told_to(lines.append):
        found = losses("mesh.attention_kernel=splash", *changes)
    assert lines == ["attention: splash: as asked"]
    np.testing.assert_allclose(found, by_products, rtol=2e-5)
    assert by_products[2] < by_products[0]
