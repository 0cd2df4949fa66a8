"""What tests of models share: variables in which every number is a draw."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(scope="session")
def random_variables():
    """Variables of a model as `init` would make them; `scale` is their deviation."""

    def draw(model, batch, scale=0.3):
        generator = np.random.default_rng(1)
        boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, train=False))
        return jax.tree.map(
            lambda leaf: jnp.asarray(generator.normal(0, scale, leaf.shape), jnp.float32),
            nn.meta.unbox(boxed),
        )

    return draw
