"""Attention against numpy, and masks (invariant 7)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masks
from bertjax.layers.attention import SelfAttention, attend
from bertjax.layers.dense import PRECISIONS
from bertjax.layers.dropout import Dropout
from bertjax.layers.position_encodings import Alibi, Rotary

B, L, H, K = 2, 5, 3, 7
PACK_IDS = jnp.array([[1, 1, 2, 2, 2], [4, 5, 5, 6, 6]])
KINDS = {
    "all": masks.padding(jnp.ones((B, L), bool)),
    "padding": masks.padding(jnp.arange(L)[None] < jnp.array([[3], [5]])),
    "packed": masks.packed(PACK_IDS),
    "visible matrix": masks.visible_matrix(jnp.tril(jnp.ones((B, L, L), bool))),
    "causal": masks.causal(L),
    "prefix": masks.visible_matrix(masks.prefix(jnp.arange(L) < jnp.array([[2], [3]]))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_self_attention_equals_the_formula(kind, random, randomized, by_hand):
    module, x = SelfAttention(H), random(B, L, H * K)
    params = randomized(module, x, KINDS[kind], train=False)
    got = module.apply(params, x, KINDS[kind], train=False)
    expected = by_hand.attention(x, KINDS[kind], params["params"])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_kernels_name_their_axes(random):
    module = SelfAttention(H)
    params = module.init(jax.random.key(0), random(B, L, H * K), KINDS["all"], train=False)
    params = params["params"]
    for name in ("query", "key", "value"):
        assert params[name]["kernel"].names == ("embed", "heads", "kv")
        assert params[name]["kernel"].value.shape == (H * K, H, K)
        assert params[name]["bias"].names == ("heads", "kv")
    assert params["output"]["kernel"].names == ("heads", "kv", "embed")
    assert params["output"]["bias"].names == ("embed",)


class Attend(nn.Module):
    """`attend` as a module, which its dropout needs around it."""

    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, query, key, value, mask, *, train=False):
        return attend(
            query,
            key,
            value,
            mask,
            Dropout(self.dropout_rate),
            PRECISIONS[query.dtype.name],
            train=train,
        )


@pytest.mark.parametrize("kind", ["padding", "packed", "visible matrix", "causal", "prefix"])
def test_masked_tokens_have_no_effect_and_no_gradient(kind, random):
    query, key, value = (random(B, L, H, K) for _ in range(3))
    probe, mask = random(H, K), KINDS[kind]
    visible = np.broadcast_to(mask.array(), (B, 1, L, L))[:, 0]

    def output(key, value):
        return Attend().apply({}, query, key, value, mask)

    def projected(key, value):
        return jnp.einsum("blhk,hk->bl", output(key, value), probe)

    for jacobian in jax.jit(jax.jacrev(projected, (0, 1)))(key, value):
        # Query (b, l) by token (c, m): the largest slope over heads and widths.
        size = np.abs(jacobian).max(axis=(-1, -2))
        for b in range(B):
            assert np.all(size[b, :, b][~visible[b]] == 0)
            assert np.all(size[b, :, 1 - b] == 0)
    jacobian_of_values = np.abs(jax.jacrev(projected, 1)(key, value)).max(axis=(-1, -2))
    assert all(np.all(jacobian_of_values[b, :, b][visible[b]] > 0) for b in range(B))


def test_values_in_masked_tokens_have_no_effect(random):
    query, key, value = (random(B, L, H, K) for _ in range(3))
    mask = KINDS["padding"]
    loud = jnp.where(mask.key_mask[:, :, None, None], 0.0, 1e4)
    np.testing.assert_array_equal(
        Attend().apply({}, query, key + loud, value + loud, mask),
        Attend().apply({}, query, key, value, mask),
    )


def test_a_query_without_visible_keys_stays_finite(random):
    query, key, value = (random(1, 3, 1, 2) for _ in range(3))
    mask = masks.packed(jnp.array([[1, 1, 0]]))

    def loss(key, value):
        return Attend().apply({}, query, key, value, mask)[0, :2].sum()

    assert np.all(np.isfinite(Attend().apply({}, query, key, value, mask)))
    for gradient in jax.grad(loss, (0, 1))(key, value):
        assert np.all(np.isfinite(gradient))
        assert np.all(gradient[0, 2] == 0)


def test_the_output_kernel_has_its_own_initializer_range(random):
    module, x = SelfAttention(H, initializer_range=0.02, output_range=0.3), random(B, L, H * K)
    params = nn.unbox(module.init(jax.random.key(0), x, KINDS["all"], train=False))["params"]
    assert np.std(params["output"]["kernel"]) == pytest.approx(0.3, rel=0.2)
    assert np.std(params["query"]["kernel"]) == pytest.approx(0.02, rel=0.2)


def test_dropout_acts_on_the_weights(random):
    query, key = random(1, 4, 1, 6), random(1, 6, 1, 6)
    # With unit vectors as values, the outputs are the weights.
    arrays = (query, key, jnp.eye(6)[None, :, None, :], masks.padding(jnp.ones((1, 6), bool)))
    whole = Attend(0.5).apply({}, *arrays)
    np.testing.assert_allclose(whole.sum(-1), np.ones((1, 4, 1)), rtol=1e-6)
    dropped = Attend(0.5).apply({}, *arrays, train=True, rngs={"dropout": jax.random.key(0)})
    assert set(np.unique(np.round(dropped / whole, 4))) == {0.0, 2.0}


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_is_near_float32(name, random, randomized):
    x, mask = random(B, L, H * K), KINDS["padding"]
    exact = SelfAttention(H)
    params = randomized(exact, x, mask, train=False, scale=0.2)
    module = SelfAttention(H, precision=PRECISIONS[name])
    x_in = jnp.asarray(x, PRECISIONS[name].activations)
    got = module.apply(params, x_in, mask, train=False)
    assert got.dtype == PRECISIONS[name].activations
    expected = exact.apply(params, x, mask, train=False)
    error = np.abs(np.asarray(got, np.float32) - expected).max() / np.abs(expected).max()
    assert error < {"float32": 1e-6, "float8": 1e-1}.get(name, 3e-2)


def test_scores_are_the_inputs_of_the_softmax(random, randomized):
    layer, x = SelfAttention(2), random(3, 5, 6)
    mask = masks.padding(jnp.arange(5) < jnp.array([[5], [2], [1]]))
    variables = randomized(layer, x, mask, train=False)
    own = variables["params"]
    scores = layer.apply(variables, x, mask, method="scores")
    query, key = (
        np.einsum("bld,dhk->blhk", x, own[name]["kernel"]) + own[name]["bias"]
        for name in ("query", "key")
    )
    expected = np.einsum("blhk,bmhk->bhlm", query, key) / np.sqrt(3)
    np.testing.assert_allclose(scores, np.where(mask.array(), expected, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["padding", "packed", "causal", "visible matrix"])
def test_a_window_is_full_attention_with_a_banded_mask(kind, random, randomized):
    x, mask = random(B, L, H * K), KINDS[kind]
    band = np.abs(np.arange(L)[:, None] - np.arange(L)) <= 1
    banded = masks.visible_matrix(jnp.asarray(band)[None] & mask.array()[:, 0])
    params = randomized(SelfAttention(H), x, mask, train=False)
    local, full = SelfAttention(H, window=3), SelfAttention(H)
    np.testing.assert_allclose(
        local.apply(params, x, mask, train=False),
        full.apply(params, x, banded, train=False),
        rtol=1e-5,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        local.apply(params, x, mask, method="scores"),
        full.apply(params, x, banded, method="scores"),
        rtol=1e-5,
        atol=1e-5,
    )


def test_rotary_attention_does_not_change_when_all_positions_are_shifted(random, randomized):
    x, mask = random(1, 6, 12), masks.padding(jnp.array([[True] * 4 + [False] * 2]))
    later = masks.padding(jnp.array([[False] * 2 + [True] * 4]))
    module = SelfAttention(3, rotary=Rotary(20.0))
    params = randomized(module, x, mask, train=False)
    got = module.apply(params, jnp.roll(x, 2, axis=1), later, train=False)[:, 2:]
    expected = module.apply(params, x, mask, train=False)[:, :4]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    reversed_mask = masks.padding(mask.key_mask[:, :4])
    reversed_order = module.apply(params, x[:, 3::-1], reversed_mask, train=False)
    assert np.abs(reversed_order[:, ::-1] - expected).max() > 0.1


def test_rotary_attention_equals_the_formula(random, randomized):
    """One head, one query at a time, with `rotate_half` as in Hugging Face's ModernBERT."""
    x, mask, theta = random(1, 5, 4), masks.padding(jnp.ones((1, 5), bool)), 30.0
    module = SelfAttention(1, rotary=Rotary(theta))
    params = randomized(module, x, mask, train=False)
    own = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    angles = np.arange(5)[:, None] * np.tile(theta ** (-np.arange(0, 4, 2) / 4), 2)

    def projected(name):
        return np.asarray(x[0]) @ own[name]["kernel"][:, 0] + own[name]["bias"][0]

    def rotated(y):
        half = np.concatenate([-y[:, 2:], y[:, :2]], axis=1)
        return y * np.cos(angles) + half * np.sin(angles)

    scores = rotated(projected("query")) @ rotated(projected("key")).T / 2
    np.testing.assert_allclose(
        module.apply(params, x, mask, method="scores")[0, 0], scores, rtol=1e-4, atol=1e-4
    )
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    context = weights @ projected("value")
    expected = context @ own["output"]["kernel"][0] + own["output"]["bias"]
    got = module.apply(params, x, mask, train=False)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_attention_without_biases_is_attention_with_zero_biases(random, randomized):
    x, mask = random(B, L, H * K), KINDS["padding"]
    module = SelfAttention(H, use_bias=False)
    params = randomized(module, x, mask, train=False)
    assert all(set(part) == {"kernel"} for part in params["params"].values())
    zero = SelfAttention(H).init(jax.random.key(0), x, mask, train=False)
    zero = jax.tree.map(jnp.zeros_like, nn.meta.unbox(zero)["params"])
    both = {name: {**zero[name], **part} for name, part in params["params"].items()}
    got = module.apply(params, x, mask, train=False)
    expected = SelfAttention(H).apply({"params": both}, x, mask, train=False)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fields", [{"rotary": Rotary()}, {"alibi": Alibi(3)}, {"window": 3}])
def test_rotary_and_local_attention_refuse_a_cache(fields, random):
    x, mask = random(1, 2, 12), masks.padding(jnp.ones((1, 2), bool))
    module, past = SelfAttention(3, **fields), (random(1, 3, 4, 2), random(1, 3, 2, 4))
    params = module.init(jax.random.key(0), x, mask, train=False)
    with pytest.raises(ValueError, match="does not support a key-value cache: got a past"):
        module.apply(params, x, mask, past, train=False)
