"""The loss that second-order optimizers get, and products with its Hessian."""

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
from bertjax.train.accumulation import split_microbatches
from bertjax.train.sharding import unbox
from bertjax.train.state import create
from bertjax.train.step import example_keys, make_train_step, mean

B, L, V = 4, 16, 32
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


@pytest.fixture(scope="module")
def batch():
    return {
        "input_ids": jnp.asarray(np.random.default_rng(0).integers(5, V, (B, L))),
        "attention_mask": jnp.ones((B, L), bool),
        "example_id": jnp.arange(B),
        "example_key": example_keys(0, jnp.asarray(0), B),
    }


def take_step(pretrainer, optimizer, batch, state=None, **options):
    state = state or create(pretrainer, optimizer, batch, 0)
    step = make_train_step(pretrainer, optimizer, jnp.ones_like, seed=0, **options)
    return state, jax.jit(step)(state, batch)[0].opt_state


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_loss_is_that_of_the_first_microbatch(microbatches, batch):
    """Also for an optimizer of some of the parameters, which gets no others."""

    def update(gradient, state, params, *, obj_fn, **_):
        return gradient, obj_fn(params)

    every = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    optimizer = optax.masked(every, lambda params: {name: name == "mlm" for name in params})
    made = pretrainer("float32", XLA)
    start, found = take_step(made, optimizer, batch, microbatches=microbatches)
    part = jax.tree.map(lambda x: x[0, 0], split_microbatches(batch, microbatches, 1))
    losses, _ = made.apply({"params": unbox(start.params)}, part, train=False)
    assert float(found.inner_state) == pytest.approx(float(mean(losses["mlm"])), rel=1e-5)


def hessian_product(gradient, state, params, *, obj_fn, **_):
    def of_gradient(params):
        leaves = jax.tree.leaves(jax.grad(obj_fn)(params))
        return sum(jnp.vdot(leaf, jnp.cos(leaf)) for leaf in leaves)

    return gradient, jax.grad(of_gradient)(params)


@pytest.mark.parametrize(
    ("precision", "plain"), [("bfloat16_operands", "float32"), ("int8", "bfloat16")]
)
def test_products_with_the_hessian_are_those_of_plain_matmuls(precision, plain, batch):
    optimizer = optax.GradientTransformationExtraArgs(lambda params: params, hessian_product)
    start, expected = take_step(pretrainer(plain, XLA), optimizer, batch)
    _, found = take_step(pretrainer(precision, "splash"), optimizer, batch, start)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max()),
        found,
        expected,
    )
