"""Products with the Hessian, of a model with fused attention and mixed or 8-bit matmuls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.layers.attention_kernels import XLA
from bertjax.models.bert import Model
from bertjax.objectives import mlm
from bertjax.pretrainer import Pretrainer
from bertjax.train.state import create
from bertjax.train.step import example_keys, make_train_step

B, L, V = 2, 16, 32
SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": L,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def pretrainer(precision, kernel):
    model = Model(**SIZES, precision=precision, attention_kernel=kernel)
    masked = functools.partial(mlm.Objective, 4, (0, 2, 3), V, masked_lm_prob=0.5)
    return Pretrainer(model, {"mlm": masked})


def hessian_product(gradient, state, params, *, obj_fn, **_):
    def of_gradient(params):
        leaves = jax.tree.leaves(jax.grad(obj_fn)(params))
        return sum(jnp.vdot(leaf, jnp.cos(leaf)) for leaf in leaves)

    return gradient, jax.grad(of_gradient)(params)


@pytest.mark.parametrize(
    ("precision", "plain"), [("bfloat16_operands", "float32"), ("int8", "bfloat16")]
)
def test_they_are_those_of_plain_matmuls(precision, plain):
    batch = {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(5, V, (B, L))),
        "attention_mask": jnp.ones((B, L), bool),
        "example_id": jnp.arange(B),
        "example_key": example_keys(0, jnp.asarray(0), B),
    }
    optimizer = optax.GradientTransformationExtraArgs(lambda params: params, hessian_product)
    state = create(pretrainer(plain, XLA), optimizer, batch, 0)

    def product(pretrainer):
        step = make_train_step(pretrainer, optimizer, lambda step: jnp.asarray(1.0), seed=0)
        return jax.jit(step)(state, batch)[0].opt_state

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max()),
        product(pretrainer(precision, "splash")),
        product(pretrainer(plain, XLA)),
    )
