"""Gradients of gradients of a model with a fused kernel and mixed matmuls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.dense import twice_differentiable
from bertjax.models.bert import Model

B, L, D = 2, 16, 32
SIZES = {
    "vocab_size": 32,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": L,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.mark.parametrize("precision", ["bfloat16_operands", "int8"])
def test_the_hessian_is_that_of_plain_matmuls(precision):
    batch = {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(0, 32, (B, L))),
        "attention_mask": jnp.ones((B, L), bool),
    }
    faster = Model(**SIZES, precision=precision, attention_kernel="splash")
    plain = Model(**SIZES, precision="float32" if precision == "bfloat16_operands" else "bfloat16")
    params = jax.jit(lambda key: plain.init(key, batch, train=False)["params"])(jax.random.key(0))

    def loss(model):
        def value(params):
            with twice_differentiable():
                encoded = model.apply({"params": params}, batch, train=True)
            return jnp.sum(jnp.sin(encoded.sequence.astype(jnp.float32)))

        return value

    def product(value):
        def of_gradient(params):
            gradient = jax.grad(value)(params)
            return sum(jnp.vdot(leaf, jnp.cos(leaf)) for leaf in jax.tree.leaves(gradient))

        return jax.jit(jax.grad(of_gradient))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max()),
        product(loss(faster)),
        product(loss(plain)),
    )
