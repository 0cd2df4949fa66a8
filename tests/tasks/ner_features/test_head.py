"""Feature-based NER: a BiLSTM on a frozen BERT."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import build
from bertjax.config import load_config
from bertjax.layers import layer_choice
from bertjax.models import bert
from bertjax.pretrainer import Pretrainer, apply_encoder
from bertjax.tasks.ner_features import head as ner_features_head
from bertjax.train import optimizer, sharding
from bertjax.train.checkpoint.trees import fingerprint, flatten_names
from bertjax.train.report import flops, training_flops
from bertjax.train.trainer import make_trainer

B, L, V, D = 8, 7, 13, 6
LABELS = ("O", "B-X", "I-X")
FIELDS = {"layers": "weighted_sum_all", "lstm_layers": 1, "lstm_size": 4}
ENCODER = bert.Model(V, D, 2, 2, 10, max_position_embeddings=L, output_hidden_states=True)


@pytest.fixture(scope="module")
def batch():
    """The class of a word is given by the preceding token; some tokens are not labelled."""
    generator = np.random.default_rng(0)
    attention_mask = np.arange(L) < generator.integers(3, L + 1, B)[:, None]
    ids = generator.integers(0, V, (B, L)) * attention_mask
    begins = attention_mask & (generator.random((B, L)) < 0.7)
    labels = begins * (1 + np.roll(ids, 1, axis=1) % len(LABELS))
    return {
        "input_ids": ids.astype(np.int32),
        "attention_mask": attention_mask,
        "token_labels": labels.astype(np.int32),
        "example_id": np.arange(B, dtype=np.uint32),
    }


def pretrainer(encode=layer_choice.frozen_features, encoder=ENCODER, **fields):
    make = functools.partial(ner_features_head.Task, LABELS, **FIELDS | fields)
    return Pretrainer(encoder, {"ner_features": make}, encode)


@pytest.fixture(scope="module")
def learned(batch):
    """(state before, state after, losses) of thirty steps, by settings of the recipe."""
    config = load_config("configs/ner.py:conll2003,features,tiny")
    mesh = sharding.make_mesh({"data": 4, "fsdp": 2, "tensor": 1, "sequence": 1})
    trainer = make_trainer(
        pretrainer(build.encode(config)),
        build.make_optimizer(config),
        lambda step: 0.03,
        batch,
        mesh=mesh,
        rules=sharding.RULES,
        seed=0,
        microbatches=1,
    )
    state = trainer.create_state()
    before = jax.tree.map(np.asarray, state)
    rows, losses = sharding.to_global(batch, mesh), []
    for _ in range(30):
        state, metrics = trainer.train_step(state, rows)
        losses.append(float(metrics["loss"]))
    return before, jax.tree.map(np.asarray, state), losses


def test_the_encoder_is_frozen_bit_for_bit_and_the_rest_is_trained(learned):
    before, after, losses = learned
    assert fingerprint(after.params["encoder"]) == fingerprint(before.params["encoder"])
    heads = (flatten_names(state.params["ner_features"]) for state in (before, after))
    assert all((old != new).any() for old, new in zip(*map(dict.values, heads), strict=True))
    assert losses[-1] < 0.7 * losses[0]
    assert int(after.skipped) == 0


def test_the_optimizer_has_no_state_for_the_encoder(learned):
    before, after, _ = learned
    for state in (before, after):
        remembered = [name for name in flatten_names(state.opt_state) if "ner_features" in name]
        assert len(remembered) == 2 * len(flatten_names(state.params["ner_features"]))
        assert not any("encoder" in name for name in flatten_names(state.opt_state))


def test_frozen_parts_do_not_affect_gradient_clipping():
    """The updates of the other parts are the same as without frozen parts."""
    generator = np.random.default_rng(1)
    params, gradients = (
        {part: {"kernel": jnp.float32(generator.normal(size=(3, 5)))} for part in ("a", "b")}
        for _ in range(2)
    )
    both, alone = optimizer.make("adamw", frozen_parts=("a",)), optimizer.make("adamw")
    found, _ = both.update(gradients, both.init(params), params)
    own = {"b": params["b"]}
    expected, _ = alone.update({"b": gradients["b"]}, alone.init(own), own)
    np.testing.assert_array_equal(found["b"]["kernel"], expected["b"]["kernel"])
    assert not np.any(found["a"]["kernel"])


@pytest.fixture(scope="module")
def rows(batch):
    return {name: jnp.asarray(values) for name, values in batch.items()}


@pytest.fixture(scope="module")
def variables(rows):
    init = functools.partial(pretrainer().init, train=False)
    return nn.meta.unbox(jax.jit(init)(jax.random.key(3), rows))


def test_the_frozen_encoder_runs_without_dropout(variables, rows):
    plain = pretrainer(apply_encoder)
    expected, _ = plain.apply(variables, rows, train=False)
    frozen_parts = pretrainer(encoder=ENCODER.clone(hidden_dropout_prob=0.9), lstm_dropout=0.0)
    found, _ = frozen_parts.apply(variables, rows, train=True)
    np.testing.assert_allclose(found["ner_features"], expected["ner_features"], rtol=1e-6)


def test_no_gradient_flows_to_the_encoder_and_none_is_counted(variables, rows):
    def loss(variables):
        return pretrainer().apply(variables, rows, train=False)[0]["ner_features"][0]

    def encoded(variables):
        params = {"params": variables["params"]["encoder"]}
        return ENCODER.apply(params, rows, train=False).sequence

    gradient = jax.jit(jax.grad(loss))(variables)["params"]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient["encoder"]))
    forward, of_encoder = flops(loss, variables), flops(encoded, variables)
    assert training_flops(loss, variables) == 3 * forward - 2 * of_encoder


def test_padding_has_no_effect_on_loss_and_predictions(variables, rows):
    attention_mask = rows["attention_mask"]
    other = rows | {"input_ids": jnp.where(attention_mask, rows["input_ids"], 5)}

    @jax.jit
    def both(rows):
        losses, _ = pretrainer().apply(variables, rows, train=False)
        return losses["ner_features"][0], pretrainer().apply(variables, rows, method="predict")

    (loss, predicted), (same, likewise) = both(rows), both(other)
    assert float(loss) == float(same)
    np.testing.assert_array_equal(predicted[attention_mask], likewise[attention_mask])
