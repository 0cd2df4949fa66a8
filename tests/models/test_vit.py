"""ViT: the number and order of patches, and images that do not match."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.models.vit import Model

SMALL = {"hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 8, "num_channels": 1}


def shape(side=8, channels=1, **fields):
    model = Model(**SMALL | {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1} | fields)
    batch = {"pixel_values": jnp.zeros((2, side, side, channels))}

    def sequence():
        return model.init_with_output(jax.random.key(0), batch, train=False)[0].sequence

    return jax.eval_shape(sequence).shape


def test_there_is_a_token_for_each_patch_and_one_for_the_image():
    assert shape() == (2, 5, 6)


def test_an_image_of_another_size_is_one_line():
    with pytest.raises(UserError, match="got 10 x 10 pixels with 1 channels, expected 8 x 8"):
        shape(side=10)
    with pytest.raises(UserError, match="got 8 x 8 pixels with 3 channels, expected 8 x 8 with 1"):
        shape(channels=3)


def test_patches_that_do_not_fit_are_one_line():
    with pytest.raises(
        UserError, match="image_size=8, patch_size=3, expected image_size to divide"
    ):
        shape(patch_size=3)


def test_patches_are_in_row_major_order(random_variables):
    """Each image has ones in one of nine patches: only that position of the sequence changes."""
    model = Model(
        **SMALL, image_size=12, patch_size=4, num_hidden_layers=1, output_hidden_states=True
    )
    images = np.zeros((10, 12, 12, 1), np.float32)
    for number in range(9):
        row, column = divmod(number, 3)
        images[number, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1
    batch = {"pixel_values": jnp.asarray(images)}
    variables = random_variables(model, batch)
    embedded = jax.jit(lambda: model.apply(variables, batch, train=False).hidden_states[0])()
    changed = np.any(np.asarray(embedded[:9] != embedded[9]), axis=-1)
    np.testing.assert_array_equal(changed, np.eye(9, 10, 1, dtype=bool))
