"""What tests of tasks share: an encoder whose output is known."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.interfaces import Encoded


class Lookup(nn.Module):
    """An encoder whose output is a table of vectors."""

    pooler: bool = True
    initializer_range: float = 0.02

    vocab_size = 11
    hidden_size = embedding_size = 5
    hidden_act = "gelu"
    layer_norm_eps = 1e-12
    precision = "float32"

    @nn.compact
    def __call__(self, batch, *, train):
        table = self.param("table", nn.initializers.normal(1.0), (11, 5))
        sequence = table[batch["input_ids"]] * batch["attention_mask"][..., None]
        return Encoded(sequence, sequence[:, 0] if self.pooler else None)

    def attend(self, hidden):
        raise AssertionError("the head of a task has no vocabulary")


@pytest.fixture(scope="session")
def lookup():
    """Makes such an encoder."""
    return Lookup


@pytest.fixture(scope="session")
def token_batch():
    """Rows of 7 random tokens, the last two of every second row padding."""

    def make(size, **more):
        generator = np.random.default_rng(3)
        there = np.arange(7) < np.where(np.arange(size) % 2, 5, 7)[:, None]
        ids = generator.integers(0, 11, (size, 7))
        batch = {"input_ids": ids, "attention_mask": there}
        return {name: jnp.asarray(rows) for name, rows in (batch | more).items()}

    return make
