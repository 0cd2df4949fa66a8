"""The chunked softmax: losses, predictions and gradients equal those of all logits at once."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import losses

B, L, D, V = 3, 7, 5, 11
SPREAD = 0.3
"""Share of smoothed labels, so that their gradient is compared as well."""


class Predicting(nn.Module):
    """A head with its own table and a given bias."""

    @nn.compact
    def __call__(self, hidden, bias, labels, weights, positions):
        self.param("table", nn.initializers.normal(), (V, D))

        def score(module, hidden, bias):
            return hidden @ module.variables["params"]["table"].T + bias

        output = losses.chunked_softmax(self, score, hidden, labels, positions, bias)
        spread = -jnp.sum(weights * output.mean)
        return -jnp.sum(weights * output.log_probs) + SPREAD * spread, jnp.sum(
            weights * output.hits
        )


@pytest.fixture(scope="module")
def given():
    generator = np.random.default_rng(0)
    hidden, table, bias = (generator.normal(size=s) for s in ((B, L, D), (V, D), (V,)))
    labels, weights = generator.integers(0, V, (B, L)), generator.random((B, L)) < 0.7
    floats = (jnp.asarray(x, jnp.float32) for x in (hidden, table, bias))
    return *floats, jnp.asarray(labels), jnp.asarray(weights, jnp.float32)


def whole(hidden, table, bias, labels, weights):
    scores = hidden @ table.T + bias
    spread = -jnp.sum(weights * jax.nn.log_softmax(scores).mean(axis=-1))
    loss = losses.cross_entropy(scores, labels, weights) + SPREAD * spread
    return loss, losses.count_correct(scores, labels, weights)


@pytest.mark.parametrize("positions", [0, 1, 3, 8])
def test_chunks_equal_the_whole(given, positions):
    def chunked(hidden, table, bias, labels, weights):
        arguments = hidden, bias, labels, weights, positions
        return Predicting().apply({"params": {"table": table}}, *arguments)

    grad = [jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True)) for f in (chunked, whole)]
    (got, gradients), (expected, others) = (f(*given) for f in grad)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
