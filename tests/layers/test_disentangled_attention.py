"""Disentangled attention, computed for one head and one pair of tokens at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import masks
from bertjax.layers.disentangled_attention import (
    DisentangledAttention,
    RelativePositions,
    relative_positions,
)

B, L, H, K = 2, 5, 3, 4
D, BUCKETS, LONGEST = H * K, 6, 6
MASK = np.array([[True] * L, [True, True, True, False, False]])
QUERIES = np.array([[3, 0], [1, 4]])


def of_sequence(table, mask=MASK, queries=None):
    rows = relative_positions(np.arange(L, -L - 1, -1), BUCKETS, LONGEST)
    return RelativePositions(masks.padding(jnp.asarray(mask)), table, rows, queries)


def by_hand(x, context, queries, table, parameters, terms, shared):
    """He et al. 2021, equation 4, with the direction of the released code, literally."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters)

    def project(name, vector):
        return np.einsum("d,dhk->hk", vector, p[name]["kernel"]) + p[name]["bias"]

    of_key, of_query = ("key", "query") if shared else ("position_key", "position_query")
    context, output = np.asarray(context, np.float64), np.zeros(x.shape)
    for b, q in np.ndindex(x.shape[:2]):
        query = project("query", np.asarray(x[b, q], np.float64))
        scores, values = np.full((H, L), -np.inf), np.zeros((L, H, K))
        for m in np.flatnonzero(MASK[b]):
            key, values[m] = project("key", context[b, m]), project("value", context[b, m])
            distance = int(queries[b, q]) - m
            relative = np.asarray(table[relative_positions(np.array([distance]), BUCKETS, LONGEST)])
            score = (query * key).sum(axis=1)
            if "c2p" in terms:
                score += (query * project(of_key, relative[0])).sum(axis=1)
            if "p2c" in terms:
                score += (key * project(of_query, relative[0])).sum(axis=1)
            scores[:, m] = score / np.sqrt(K * (1 + len(terms)))
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads = np.einsum("hm,mhk->hk", weights / weights.sum(axis=1, keepdims=True), values)
        output[b, q] = np.einsum("hk,hkd->d", heads, p["output"]["kernel"]) + p["output"]["bias"]
    return output


@pytest.mark.parametrize(
    ("terms", "shared"), [(("p2c", "c2p"), True), (("c2p",), False), (("p2c",), False)]
)
def test_attention_by_hand(terms, shared, random, randomized):
    module = DisentangledAttention(H, terms, shared, dropout_rate=0.0)
    x, others, table = random(B, L, D), random(B, 2, D), random(2 * BUCKETS, D)
    variables = randomized(module, x, of_sequence(table), train=False)
    call = functools.partial(module.apply, variables, train=False)
    everywhere = np.broadcast_to(np.arange(L), (B, L))
    expected = by_hand(x, x, everywhere, table, variables["params"], terms, shared)
    np.testing.assert_allclose(call(x, of_sequence(table)), expected, rtol=1e-4, atol=1e-5)
    # Other queries, at two positions of the sequence, as in the mask decoder.
    got = call(others, of_sequence(table, queries=jnp.asarray(QUERIES)), x)
    expected = by_hand(others, x, QUERIES, table, variables["params"], terms, shared)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_masked_keys_have_weights_of_exactly_zero(random, randomized):
    """Invariant 7: no output and no gradient; nor for a query without visible keys."""
    module = DisentangledAttention(H, dropout_rate=0.0)
    x, table, probe = random(B, L, D), random(2 * BUCKETS, D), random(B, L, D)
    mask = np.array([MASK[1], [False] * L])
    variables = randomized(module, x, of_sequence(table, mask), train=False)

    def loss(x, table):
        output = module.apply(variables, x, of_sequence(table, mask), train=False)
        return jnp.sum((output * probe)[:, :1]), output

    (_, output), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(x, table)
    assert not np.asarray(gradients[0])[~mask].any()
    assert np.asarray(gradients[0])[0, :3].any(axis=1).all()
    np.testing.assert_array_equal(
        output[1], np.broadcast_to(variables["params"]["output"]["bias"], (L, D))
    )
    same, other = (loss(rows, table)[1][0, :3] for rows in (x, x.at[0, 3:].add(7.0)))
    np.testing.assert_array_equal(same, other)
    assert np.asarray(gradients[1]).any(axis=1).sum() == 3  # distances 0, -1 and -2 of one query


def test_weights_and_relative_positions_are_dropped_out(random, randomized):
    x, table = random(B, L, D), random(2 * BUCKETS, D)
    rngs = {"dropout": jax.random.key(3)}
    for rates in ((0.5, 0.0), (0.0, 0.5)):
        module = DisentangledAttention(H, dropout_rate=rates[0], position_dropout_rate=rates[1])
        variables = randomized(module, x, of_sequence(table), train=False)
        call = functools.partial(module.apply, variables, x, of_sequence(table))
        assert np.abs(call(train=True, rngs=rngs) - call(train=False)).max() > 1e-3


def test_relative_positions_are_clipped_or_logarithmic():
    distances = np.array([-9, -3, -2, -1, 0, 1, 2, 3, 9])
    np.testing.assert_array_equal(relative_positions(distances, -1, 2), [0, 0, 0, 1, 2, 3, 3, 3, 3])
    far = np.array([-600, -511, -129, -128, 0, 128, 129, 130, 131, 510, 511, 600])
    # log(129 / 128) / log(511 / 128) * 127 = 0.71, of 130 1.42 and of 131 2.12.
    expected = np.array([-256, -255, -129, -128, 0, 128, 129, 130, 131, 255, 255, 255]) + 256
    np.testing.assert_array_equal(relative_positions(far, 256, 512), expected)
