"""The GLUE head: losses by hand, weights, gradients, metrics."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.heads import Pooler
from bertjax.pretrainer import Encoded, Pretrainer
from bertjax.tasks.glue import head as glue_head


@pytest.fixture(scope="module")
def build(lookup):
    def make(dataset, *, pooler=True, **fields):
        return Pretrainer(lookup(pooler), {"glue": lambda: glue_head.Task(dataset, **fields)})

    return make


def a_batch(labels, weights=None):
    size = len(labels)
    generator = np.random.default_rng(3)
    batch = {
        "input_ids": jnp.array(generator.integers(0, 11, (size, 7))),
        "attention_mask": jnp.ones((size, 7), bool),
        "labels": jnp.array(labels),
    }
    return batch if weights is None else batch | {"example_weight": jnp.array(weights)}


def initialised(module, batch):
    return nn.meta.unbox(module.init(jax.random.key(0), batch, train=False)["params"])


def with_head(params, kernel, bias):
    head = {"dense": {"kernel": jnp.array(kernel), "bias": jnp.array(bias)}}
    return params | {"glue": {"classifier": head}}


def test_names_and_initialisation_of_parameters(build, lookup):
    params = initialised(build("mnli"), a_batch([0, 1, 2]))
    assert set(params) == {"encoder", "glue"}
    assert set(params["glue"]) == {"classifier"}
    head = params["glue"]["classifier"]["dense"]
    assert head["kernel"].shape == (5, 3)
    assert not head["bias"].any()
    assert 0 < jnp.abs(head["kernel"]).max() <= 0.1
    wide = glue_head.Task("mnli").init(
        jax.random.key(1),
        lookup(initializer_range=0.3),
        Encoded(jnp.ones((2, 3, 1009)), jnp.ones((2, 1009))),
        {},
        method="predict",
    )
    kernel = nn.meta.unbox(wide)["params"]["classifier"]["dense"]["kernel"]
    assert float(kernel.std()) == pytest.approx(0.3, rel=0.03)
    assert float(jnp.abs(kernel).max()) > 0.6


def test_cross_entropy_by_hand(build):
    """Logits (0, 2) for any input: -log softmax is 2.126928 and 0.126928."""
    batch = a_batch([0, 1, 1], [1.0, 1.0, 0.0])
    module = build("cola")
    params = with_head(initialised(module, batch), np.zeros((5, 2), np.float32), [0.0, 2.0])
    losses, metrics = module.apply({"params": params}, batch, train=False)
    loss_sum, weight_sum = losses["glue"]
    assert float(loss_sum) == pytest.approx(2.126928 + 0.126928, abs=1e-5)
    assert float(weight_sum) == 2.0
    correct, count = metrics["glue/accuracy"]
    assert (float(correct), float(count)) == (1.0, 2.0)


def test_squared_error_by_hand(build):
    batch = a_batch(np.array([1.0, 4.5, 0.0], np.float32), [1.0, 1.0, 0.0])
    module = build("stsb")
    params = with_head(initialised(module, batch), np.zeros((5, 1), np.float32), [3.0])
    losses, metrics = module.apply({"params": params}, batch, train=False)
    assert [float(x) for x in losses["glue"]] == [4.0 + 2.25, 2.0]
    assert [float(x) for x in metrics["glue/absolute_error"]] == [2.0 + 1.5, 2.0]


def test_logits_are_a_linear_map_of_the_pooled_output(build):
    batch = a_batch([0, 1, 2, 0, 1])
    module = build("mnli")
    params = initialised(module, batch)
    kernel = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    bias = np.array([0.1, -0.2, 0.3], np.float32)
    params = with_head(params, kernel, bias)
    pooled = np.asarray(params["encoder"]["table"])[np.asarray(batch["input_ids"])[:, 0]]
    expected = pooled @ kernel + bias
    predictions = module.apply({"params": params}, batch, method="predict")
    assert predictions.tolist() == expected.argmax(axis=1).tolist()
    (loss_sum, _) = module.apply({"params": params}, batch, train=False)[0]["glue"]
    log_softmax = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    chosen = log_softmax[np.arange(5), np.asarray(batch["labels"])]
    assert float(loss_sum) == pytest.approx(-chosen.sum(), rel=1e-5)


def test_a_regression_predicts_its_only_logit(build):
    batch = a_batch(np.zeros(4, np.float32))
    module = build("stsb")
    params = initialised(module, batch)
    kernel = np.arange(5, dtype=np.float32)[:, None]
    params = with_head(params, kernel, [0.5])
    pooled = np.asarray(params["encoder"]["table"])[np.asarray(batch["input_ids"])[:, 0]]
    predictions = module.apply({"params": params}, batch, method="predict")
    assert predictions.shape == (4,)
    np.testing.assert_allclose(predictions, (pooled @ kernel)[:, 0] + 0.5, rtol=1e-5)


def test_padding_examples_have_no_gradient(build):
    batch = a_batch([0, 1, 1, 0], [1.0, 0.0, 1.0, 0.0])
    module = build("rte")
    params = initialised(module, batch)

    def loss(params, batch):
        return module.apply({"params": params}, batch, train=False)[0]["glue"][0]

    changed = batch | {
        "labels": jnp.array([0, 0, 1, 1]),
        "input_ids": batch["input_ids"].at[1].set(9).at[3].set(10),
    }
    expected, other = jax.grad(loss)(params, batch), jax.grad(loss)(params, changed)
    jax.tree.map(np.testing.assert_array_equal, expected, other)
    assert any(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected["encoder"]))


def test_dropout_acts_in_training_alone(build):
    batch = a_batch([0, 1, 1, 0])
    module = build("rte", classifier_dropout=0.5)
    params = with_head(initialised(module, batch), np.ones((5, 2), np.float32) * [1, -1], [0.0, 0])

    def loss(key, train):
        rngs = {"dropout": jax.random.key(key)}
        return float(module.apply({"params": params}, batch, train=train, rngs=rngs)[0]["glue"][0])

    assert loss(0, False) == loss(1, False)
    assert loss(0, True) != loss(1, True)
    assert loss(0, True) == loss(0, True)


def test_an_encoder_without_a_pooler_gets_one(build):
    batch = a_batch([0, 1, 1])
    module = build("rte", pooler=False)
    params = initialised(module, batch)
    assert set(params["glue"]) == {"classifier", "pooler"}
    sequence = params["encoder"]["table"][batch["input_ids"]]
    pooled = Pooler().apply({"params": params["glue"]["pooler"]}, sequence)
    head = params["glue"]["classifier"]["dense"]
    expected = jnp.argmax(pooled @ head["kernel"] + head["bias"], axis=-1)
    predictions = module.apply({"params": params}, batch, method="predict")
    assert predictions.tolist() == expected.tolist()
