"""Cross-attention: masked source tokens have no gradient (invariant 7)."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.layers import masks
from bertjax.layers.attention import CrossAttention, SelfAttention

B, L, M, H, K = 2, 4, 5, 3, 7


def read_and_attend(layer, x, memory, mask):
    return layer(x, layer.read(memory), mask, train=False)


def test_cross_attention_of_a_sequence_to_itself_equals_self_attention(random, randomized):
    x, mask = random(B, M, H * K), masks.causal(M)
    variables = randomized(SelfAttention(H), x, mask, train=False)
    expected = SelfAttention(H).apply(variables, x, mask, train=False)
    found = CrossAttention(H).apply(variables, x, x, mask, method=read_and_attend)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_masked_tokens_of_the_source_have_no_gradient(random, randomized):
    x, memory, probe = random(B, L, H * K), random(B, M, H * K), random(H * K)
    key_mask = np.arange(M) < np.array([[3], [5]])
    mask = masks.padding(jnp.asarray(key_mask))
    variables = randomized(SelfAttention(H), x, masks.causal(L), train=False)

    def projected(memory):
        return CrossAttention(H).apply(variables, x, memory, mask, method=read_and_attend) @ probe

    slopes = np.abs(jax.jit(jax.jacrev(projected))(memory)).max(-1)
    for b in range(B):
        assert np.all(slopes[b, :, b][:, ~key_mask[b]] == 0)
        assert np.all(slopes[b, :, b][:, key_mask[b]] > 0)
        assert np.all(slopes[b, :, 1 - b] == 0)
