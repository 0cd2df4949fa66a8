"""Relative attention, computed for one head and one pair of tokens at a time."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers.relative_attention import RelativeAttention, View, Views, distance_signals

B, L, T, P, H, K = 2, 5, 3, 2, 3, 4
D, M = H * K, T + L


def views(random_mask=None, clamp=0):
    generator = np.random.default_rng(4)
    positions = np.array([[3, 0], [1, 4]])
    mask = generator.random((B, 1, L, M)) < 0.7
    other = generator.random((B, L, M)) < 0.5
    query_mask = generator.random((B, 1, P, M)) < 0.7
    query_mask[0, 0, 1] = False
    memory_mask = generator.random((B, P, M)) < 0.5
    streams = (
        View(*map(jnp.asarray, (mask, other))),
        View(*map(jnp.asarray, (query_mask, memory_mask, positions))),
    )
    return Views(streams, jnp.asarray(distance_signals(L, M, D, clamp)))


def wave(distance):
    frequencies = 10_000.0 ** (-np.arange(0, D, 2) / D)
    return np.concatenate([np.sin(distance * frequencies), np.cos(distance * frequencies)])


def by_hand(stream, view, content, memory, parameters, clamp):
    """Dai et al. 2019, section 3.3, and Yang et al. 2019, section 2.5, literally."""
    p = {
        name: np.asarray(leaf["kernel"] if isinstance(leaf, dict) else leaf, np.float64)
        for name, leaf in parameters.items()
    }
    inputs = np.concatenate([memory, content], axis=1).astype(np.float64)
    stream = np.asarray(stream, np.float64)
    output = np.zeros((B, stream.shape[1], D))
    for b, q in np.ndindex(B, stream.shape[1]):
        place = q if view.positions is None else int(view.positions[b, q])
        heads = np.zeros((H, K))
        for h in range(H):
            query = stream[b, q] @ p["query"][:, h]
            scores = np.full(M, -np.inf)
            for m in range(M):
                distance = T + place - m
                distance = np.clip(distance, -clamp, clamp) if clamp else distance
                segment = p["segments"][int(view.other_segment[b, q, m]), h]
                score = (query + p["content_bias"][h]) @ (inputs[b, m] @ p["key"][:, h])
                score += (query + p["position_bias"][h]) @ (wave(distance) @ p["relative"][:, h])
                score += (query + p["segment_bias"][h]) @ segment
                if view.mask[b, 0, q, m]:
                    scores[m] = score / np.sqrt(K)
            if np.isfinite(scores).any():
                weights = np.exp(scores - scores.max())
                heads[h] = weights @ (inputs[b] @ p["value"][:, h]) / weights.sum()
        output[b, q] = np.einsum("hk,hkd->d", heads, p["output"])
    return output


@pytest.mark.parametrize("clamp", [0, 2])
def test_both_streams_by_hand(random, randomized, clamp):
    module = RelativeAttention(H, dropout_rate=0.0)
    streams, memory = (random(B, L, D), random(B, P, D)), random(B, T, D)
    what = views(clamp=clamp)
    variables = randomized(module, streams, what, memory, train=False)
    got = module.apply(variables, streams, what, memory, train=False)
    for stream, view, result in zip(streams, what.streams, got, strict=True):
        expected = by_hand(stream, view, streams[0], memory, variables["params"], clamp)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    # The second query of the first row has no visible keys: its output is zero.
    assert not np.asarray(got[1])[0, 1].any()


def test_distances_are_descending_and_can_be_clamped():
    signals = distance_signals(2, 3, 4, 0)
    np.testing.assert_allclose(signals[:, 0], np.sin([3, 2, 1, 0, -1]), rtol=1e-6)
    clamped = distance_signals(2, 3, 4, 1)
    np.testing.assert_allclose(clamped[:, 0], np.sin([1, 1, 1, 0, -1]), rtol=1e-6)
