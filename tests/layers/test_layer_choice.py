"""Choices of layers by name, against hidden states selected by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.layers import layer_choice
from bertjax.pretrainer import Encoded

B, L, D, N = 2, 3, 5, 6


class Reader(nn.Module):
    """A task that chooses layers of an encoder."""

    layers: str

    @nn.compact
    def __call__(self, encoded):
        return layer_choice.select_features(encoded, self.layers)


def encoded_of(random, layers):
    """Outputs of a model with a LayerNorm after its last layer."""
    states = tuple(random(layers + 1, B, L, D))
    return Encoded(2 * states[-1], hidden_states=states)


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


@pytest.mark.parametrize("name", layer_choice.CHOICES)
def test_named_choices_equal_those_by_hand(name, random):
    encoded = encoded_of(random, N)
    h = [*map(np.asarray, encoded.hidden_states[:-1]), np.asarray(encoded.sequence)]
    module = Reader(name)
    params = nn.meta.unbox(module.init(jax.random.key(0), encoded)).get("params", {})
    weighed = {"weighted_sum_last_four": h[3:], "weighted_sum_all": h[1:]}
    if name in weighed:
        assert params["mix"]["weights"].shape == (len(weighed[name]),)
        weights = np.linspace(-1, 1, len(weighed[name]))
        params = {"mix": {"weights": jnp.float32(weights), "gamma": jnp.float32(3)}}
        expected = sum(3 * w * x for w, x in zip(softmax(weights), weighed[name], strict=True))
    else:
        assert params == {}
        expected = {
            "embeddings": h[0],
            "second_to_last": h[5],
            "last": h[6],
            "sum_last_four": h[3] + h[4] + h[5] + h[6],
            "concat_last_four": np.concatenate([h[3], h[4], h[5], h[6]], axis=-1),
        }[name]
    found = module.apply({"params": params}, encoded)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layers"), [("second_to_last", 1), ("sum_last_four", 3), ("concat_last_four", 3)]
)
def test_too_few_layers_are_one_line(name, layers, random):
    message = f"too few layers for '{name}': got {layers}, expected . or more; choose"
    with pytest.raises(UserError, match=message) as caught:
        layer_choice.select_features(encoded_of(random, layers), name)
    assert "\n" not in str(caught.value)
    assert name not in str(caught.value).partition("choose among")[2].split(", ")
    layer_choice.check(name, layers + 1)


def test_an_unknown_name_and_an_encoder_without_hidden_states(random):
    with pytest.raises(UserError, match="no layers 'lst': did you mean 'last'"):
        layer_choice.check("lst", 12)
    with pytest.raises(UserError, match=r"set --config\.model\.output_hidden_states=true"):
        layer_choice.select_features(Encoded(random(B, L, D)), "last")
