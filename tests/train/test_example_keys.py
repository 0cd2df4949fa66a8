"""Random keys of examples (invariant 1)."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.train.step import evaluation_keys, example_keys


def test_no_two_seeds_steps_purposes_or_examples_share_a_key():
    keys = [
        example_keys(seed, jnp.asarray(step), 3, purpose)
        for seed, step, purpose in itertools.product((0, 1), (0, 1), ("masks", "dropout"))
    ]
    keys += [evaluation_keys(0, jnp.arange(3))]
    data = np.concatenate([jax.random.key_data(some) for some in keys])
    assert len(np.unique(data, axis=0)) == len(data) == 9 * 3
