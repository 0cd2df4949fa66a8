"""Spans of a text: exact shares, published distributions, sources and targets made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.layers import spans

L = 64
SPECIAL = (0, 1, 2, 3, 4)
SIZES = np.array([62, 40, 13, 2, 1])
ROWS = 1000


@pytest.fixture(scope="module")
def rows():
    """[CLS] text [SEP], texts of several sizes, many times."""
    generator = np.random.default_rng(0)
    ids = generator.integers(5, 90, (len(SIZES) * ROWS, L))
    sizes = np.tile(SIZES, ROWS)
    is_token = np.arange(L) < sizes[:, None] + 2
    ids[:, 0] = 2
    ids[np.arange(len(ids)), sizes + 1] = 3
    return jnp.asarray(np.where(is_token, ids, 0)), jnp.asarray(is_token)


@pytest.fixture(scope="module")
def keys(rows):
    return jax.random.split(jax.random.key(0), len(rows[0]))


@pytest.fixture(scope="module")
def random_spans(rows, keys):
    def sample(keys, ids, is_token):
        text = spans.find_text(ids, is_token, SPECIAL)
        return text, spans.random_spans(keys, text, L, share=0.15, mean=3.0)

    return jax.tree.map(np.asarray, jax.jit(sample)(keys, *rows))


@pytest.fixture(scope="module")
def poisson_spans(rows, keys):
    def sample(keys, ids, is_token):
        text = spans.find_text(ids, is_token, SPECIAL)
        return text, spans.poisson_spans(keys, text, L, share=0.3, mean=3.0)

    return jax.tree.map(np.asarray, jax.jit(sample)(keys, *rows))


def test_text_excludes_special_tokens_at_the_ends(random_spans):
    text, _ = random_spans
    np.testing.assert_array_equal(text.size, np.tile(SIZES, ROWS))
    assert np.all(text.begin == 1)


@pytest.mark.parametrize(("share", "expected"), [(0.15, [9, 6, 2, 1, 1]), (0.3, [19, 12, 4, 1, 1])])
def test_a_share_is_rounded_and_at_least_one(share, expected):
    np.testing.assert_array_equal(spans.round_share(jnp.asarray(SIZES), share, L), expected)


def test_random_spans_are_exact_and_end_the_text(random_spans):
    text, found = random_spans
    sizes = np.where(found.mask, found.size, 0)
    np.testing.assert_array_equal(sizes.sum(1), np.tile([9, 6, 2, 1, 0], ROWS))
    np.testing.assert_array_equal(found.mask.sum(1), np.tile([3, 2, 1, 1, 0], ROWS))
    assert np.all(sizes[found.mask] > 0)
    for begin, size, is_token, row in zip(
        found.begin, found.size, found.mask, range(40), strict=False
    ):
        begin, end = begin[is_token], (begin + size)[is_token]
        assert np.all(begin > np.append(text.begin[row], end[:-1])[: len(begin)])
        if len(end):
            assert end[-1] == text.begin[row] + text.size[row]
    # All ways to cut 9 tokens into 3 parts are equally likely: 8 over 2, of which 7 begin with 1.
    first = found.size[:: len(SIZES), 0]
    assert np.mean(first == 1) == pytest.approx(7 / 28, abs=0.05)


def test_poisson_spans_are_exact_and_never_touch(poisson_spans):
    text, found = poisson_spans
    sizes = np.where(found.mask, found.size, 0)
    np.testing.assert_array_equal(sizes.sum(1), np.tile([19, 12, 4, 1, 1], ROWS))
    for begin, size, is_token, row in zip(
        found.begin, found.size, found.mask, range(40), strict=False
    ):
        begin, end = begin[is_token], (begin + size)[is_token]
        assert np.all(begin[1:] > end[:-1])
        assert begin[0] >= text.begin[row]
        assert end[-1] <= text.begin[row] + text.size[row]
    first = found.size[:: len(SIZES), 0]
    assert np.mean(first == 0) == pytest.approx(np.exp(-3), abs=0.03)
    assert np.mean(first) == pytest.approx(3, abs=0.4)


def test_every_token_is_in_the_source_or_in_the_target(rows, random_spans):
    ids, is_token = rows
    _, found = random_spans
    tokens = jnp.broadcast_to(99 - jnp.arange(found.begin.shape[1]), found.begin.shape)
    source, mask = spans.replace_spans(ids, is_token, found, tokens, L, 0)
    target, target_mask = spans.gather_spans(ids, found, tokens, 3, L, 0)
    for row in range(20):
        output = np.asarray(target[row])[np.asarray(target_mask[row])].tolist()
        assert output.pop() == 3
        parts, last = {}, None
        for token in output:
            if token > 90:
                parts[token], last = [], token
            else:
                parts[last].append(token)
        again = []
        for token in np.asarray(source[row])[np.asarray(mask[row])].tolist():
            again += parts[token] if token > 90 else [token]
        assert again == np.asarray(ids[row])[np.asarray(is_token[row])].tolist()


def test_an_empty_span_inserts_a_mask_token():
    ids = jnp.asarray([[7, 8, 9, 0]])
    is_token = jnp.asarray([[True, True, True, False]])
    found = spans.Spans(*(jnp.asarray([rows]) for rows in ([0, 1, 3], [0, 2, 0], [True] * 3)))
    source, mask = spans.replace_spans(ids, is_token, found, jnp.full((1, 3), 4), 5, 0)
    np.testing.assert_array_equal(source, [[4, 7, 4, 4, 0]])
    np.testing.assert_array_equal(mask, [[True] * 4 + [False]])
