"""Fixtures of objective tests: a small encoder, and batches of random tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.bert import Model
from bertjax.train.step import example_keys

PAD, CLS, SEP, MASK = 0, 2, 3, 4
VOCABULARY = 61


@pytest.fixture(scope="session")
def encoder():
    """A very small BERT."""
    return Model(
        vocab_size=VOCABULARY,
        hidden_size=6,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
        max_position_embeddings=64,
    )


@pytest.fixture(scope="session")
def make_batch():
    """Build rows [CLS] tokens [SEP] of different lengths, with the keys of a step."""

    def make(batch_size=8, length=40, *, seed=0, step=0, full=False):
        generator = np.random.default_rng(7)
        lengths = generator.integers(length // 2, length + 1, batch_size)
        lengths[0] = length
        if full:
            lengths[:] = length
        input_ids = generator.integers(5, VOCABULARY, (batch_size, length))
        input_ids[:, 0] = CLS
        input_ids[np.arange(batch_size), lengths - 1] = SEP
        attention_mask = np.arange(length) < lengths[:, None]
        return {
            "input_ids": jnp.asarray(np.where(attention_mask, input_ids, PAD), jnp.int32),
            "attention_mask": jnp.asarray(attention_mask),
            "word_starts": jnp.asarray((input_ids % 3 > 0) | (input_ids < 5)),
            "example_id": jnp.arange(100, 100 + batch_size),
            "example_key": example_keys(seed, jnp.asarray(step), batch_size),
        }

    return make


@pytest.fixture(scope="session")
def random_variables():
    """Random variables with the shapes of `init`."""

    def draw(module, *arguments, **options):
        generator = np.random.default_rng(1)
        boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments, **options))
        return jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32),
            jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda x: hasattr(x, "names")),
        )

    return draw
