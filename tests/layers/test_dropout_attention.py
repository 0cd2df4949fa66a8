"""The Pallas kernel with dropout equals attention with the mask of `Dropout`, interpreted."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from bertjax.layers import dropout_attention as kernel
from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention, masked_softmax_attention, scaled_scores
from bertjax.layers.dense import Precision
from bertjax.layers.dropout import DropoutKeys, per_example_key
from bertjax.train.report import flops

B, L, H, K = 4, 256, 2, 8
SHARED = jax.random.key(3)
PER_EXAMPLE = jax.random.split(jax.random.key(4), B)


@pytest.fixture(autouse=True)
def two_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(kernel, "_MAX_SCORES", 128 * L)


def every_mask():
    """Padding, packed, causal and local; the last of four rows has no visible key."""
    attention_mask = np.random.default_rng(3).random((B, L)) < 0.7
    packed_segment_ids = 1 + (np.arange(L) + 30 * np.arange(B)[:, None]) // 100
    attention_mask[-1], packed_segment_ids[-1] = False, 0
    packed = masks.packed(jnp.asarray(packed_segment_ids))
    return (
        masks.padding(jnp.asarray(attention_mask)) & packed & masks.causal(L) & masks.window(L, 51)
    )


def formula(query, key, value, mask, dropout):
    scores = scaled_scores(query, key, Precision())
    sampled = dropout.mask(scores.shape)
    return masked_softmax_attention(scores, mask.array(), sampled, value, Precision())


def value_and_gradients(function, mask, dropout, probe, *arrays):
    output, transpose = jax.vjp(lambda *arrays: function(*arrays, mask, dropout=dropout), *arrays)
    return output, transpose(probe)


interpreted = functools.partial(kernel.dropout_attention, interpret=True)


@pytest.mark.parametrize(
    ("keys", "num_keys", "mask"),
    [
        (SHARED, 384, masks.padding(jnp.arange(384) < jnp.array([[384], [301], [7], [0]]))),
        (PER_EXAMPLE[: B // 2], L, every_mask()),
    ],
    ids=["one key for all, padding", "two rows of an example, all masks"],
)
def test_values_and_gradients_equal_the_formula(keys, num_keys, mask, random):
    arrays = random(B, L, H, K), random(B, num_keys, H, K), random(B, num_keys, H, K)
    probe, dropout = random(B, L, H, K), DropoutKeys(keys, 0.1)
    got, expected = (
        jax.jit(functools.partial(value_and_gradients, function, mask, dropout))(probe, *arrays)
        for function in (interpreted, formula)
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert np.all(one[-1] == 0)


def test_matmuls_are_those_of_the_operands_dtype(random):
    """Two products of bfloat16 arrays in the forward pass, five in the backward pass."""
    arrays = [random(1, L, 1, K).astype(jnp.bfloat16) for _ in range(4)]
    dropout, mask = DropoutKeys(SHARED, 0.1), masks.causal(L)
    function = functools.partial(value_and_gradients, interpreted, mask, dropout)
    assert flops(function, *arrays, operand_bytes=2) == 7 * 2 * L * L * K
    output, gradients = jax.jit(function)(*arrays)
    exact = jax.jit(functools.partial(value_and_gradients, formula, mask, dropout))(
        *(x.astype(jnp.float32) for x in arrays)
    )
    for one, other in zip((output, *gradients), (exact[0], *exact[1]), strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=0.03)


def test_masks_do_not_depend_on_the_mesh(random):
    """Rows over data and fsdp, heads over tensor; and rows by vmap over data, as in training."""
    axes = ("data", "fsdp", "tensor", "sequence")
    mesh = jax.make_mesh((2, 2, 2, 1), axes, axis_types=(AxisType.Auto,) * 4)
    arrays, key_mask = [random(B, L, H, K) for _ in range(3)], jnp.ones((B, L), bool)
    expected = formula(*arrays, masks.padding(key_mask), DropoutKeys(PER_EXAMPLE, 0.5))

    def attend(query, key, value, key_mask, keys):
        dropout = DropoutKeys(jax.random.wrap_key_data(keys), 0.5)
        return interpreted(query, key, value, masks.padding(key_mask), dropout=dropout)

    def by_rows(*arrays):
        with nn.logical_axis_rules([("batch", ("data", "fsdp")), ("heads", "tensor")]):
            return attend(*arrays)

    def by_shards(*arrays):
        with nn.logical_axis_rules([("batch", "fsdp"), ("heads", "tensor")]):
            parts = [x.reshape(2, B // 2, *x.shape[1:]) for x in arrays]
            return jax.vmap(attend, spmd_axis_name="data")(*parts).reshape(expected.shape)

    arrays = (*arrays, key_mask, jax.random.key_data(PER_EXAMPLE))
    where = jax.sharding.NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    for function in (by_rows, by_shards):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            compiled = jax.jit(function, in_shardings=where).lower(*arrays).compile()
        got = compiled(*jax.device_put(arrays, where))
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert "all-gather" not in compiled.as_text()


def test_a_layer_has_the_same_masks_with_and_without_the_kernel(random):
    x, mask = random(B, L, H * K), masks.causal(L)
    rngs = {"dropout": per_example_key(jax.random.key(7), PER_EXAMPLE)}
    params = SelfAttention(H).init(jax.random.key(0), x, mask, train=False)

    @functools.partial(jax.jit, static_argnums=0)
    def output(name, x):
        return SelfAttention(H, 0.5, kernel=name).apply(params, x, mask, train=True, rngs=rngs)

    assert "pallas_call" in str(output.trace("pallas", x).jaxpr)
    np.testing.assert_allclose(output("pallas", x), output("xla", x), atol=1e-5)
