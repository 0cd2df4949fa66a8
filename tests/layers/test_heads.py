"""Heads on top of an encoder: pooler, transform, classifier."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.layers.dense import PRECISIONS
from bertjax.layers.heads import Classifier, Pooler, PredictionTransform


def test_the_pooler_uses_the_first_token(random, randomized):
    module, sequence = Pooler(), random(2, 5, 7)
    params = randomized(module, sequence)
    dense = params["params"]["dense"]
    expected = np.tanh(sequence[:, 0] @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(module.apply(params, sequence), expected, rtol=1e-5, atol=1e-6)


def test_the_transform_may_change_the_width(random, randomized, by_hand):
    module, hidden = PredictionTransform(3, layer_norm_eps=1e-2), random(2, 5, 7)
    params = randomized(module, hidden)
    dense = params["params"]["dense"]
    expected = by_hand.gelu(hidden @ dense["kernel"] + dense["bias"])
    expected = by_hand.layer_norm(expected, params["params"]["norm"], 1e-2)
    np.testing.assert_allclose(module.apply(params, hidden), expected, rtol=1e-4, atol=1e-5)


def test_the_transform_uses_its_activation(random):
    hidden = random(2, 7)
    variables = PredictionTransform(3).init(jax.random.key(0), hidden)
    outputs = [
        PredictionTransform(3, hidden_act=name).apply(variables, hidden)
        for name in ("gelu", "relu", "tanh")
    ]
    assert all(np.abs(outputs[0] - other).max() > 1e-3 for other in outputs[1:])


def test_a_classifier_is_float32_in_any_precision(random, randomized):
    module, pooled = Classifier(3), random(2, 7)
    params = randomized(module, pooled)
    dense = params["params"]["dense"]
    expected = pooled @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(module.apply(params, pooled), expected, rtol=1e-5, atol=1e-6)
    assert module.apply(params, pooled.astype(jnp.bfloat16)).dtype == jnp.float32


def test_heads_keep_the_type_of_the_precision(random):
    sequence = random(2, 5, 7).astype(jnp.bfloat16)
    for module in (Pooler(precision=PRECISIONS["bfloat16"]),
                   PredictionTransform(3, precision=PRECISIONS["bfloat16"])):  # fmt: skip
        output, _ = module.init_with_output(jax.random.key(0), sequence)
        assert output.dtype == jnp.bfloat16
