"""Features of a frozen encoder, and the choice of its layers (Devlin et al. 2019, table 7).

A frozen module is applied without gradients: a teacher within a model, or a feature extractor.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PyTree

from bertjax.constraints import OneOf, Text
from bertjax.errors import UserError, nearest
from bertjax.interfaces import Batch
from bertjax.layers.heads import ScalarMix
from bertjax.pretrainer import Encoded, Encoder, Pretrainer

FORWARD = "frozen_forward"
"""Name of the inner jitted function, by which FLOP counts recognise it."""


Teacher = Annotated[Callable[[], Pretrainer], Text()]
"""A function that makes a teacher; in a config, the name of its run."""


class Frozen(nn.Module):
    """Module without gradient: its parameters are in the collection "frozen", which is not trained.

    Attributes:
      make: Makes the module, with `parent=None`.
    """

    make: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, method: Callable, *arguments: Any) -> PyTree:
        """Returns `method(module, *arguments)`."""
        module = self.make()

        def init() -> PyTree:
            return module.init(jax.random.key(0), *arguments, method=method)["params"]

        def forward(params: PyTree, *arguments: Any) -> PyTree:
            return lax.stop_gradient(module.apply({"params": params}, *arguments, method=method))

        forward.__name__ = FORWARD
        params = self.variable("frozen", "params", init).value
        return jax.jit(forward)(params, *arguments)


def frozen_features(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """Encodes a batch without dropout and without gradient; see `pretrainer.Pretrainer.encode`.

    Unlike a teacher's, the parameters are among those of the run, so that checkpoints are complete
    models; the optimizer must not update them.
    """

    def forward(encoder: Encoder, batch: Batch) -> Encoded:
        return encoder(batch, train=False)

    forward.__name__ = FORWARD
    return lax.stop_gradient(nn.jit(forward)(encoder, batch))


States = Sequence[Float[Array, "B L D"]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A range of layers, and how their vectors are combined.

    Attributes:
      first: The first layer: 0 for the embeddings, -1 for the last layer.
      stop: The layer after the last one; None for the end.
      combine: Combines the layers.
    """

    first: int
    stop: int | None
    combine: Callable[[States], Float[Array, "B L E"]]

    @property
    def min_layers(self) -> int:
        """Fewest layers that an encoder must have, without the embeddings."""
        return abs(self.first)


def _sum(states: States) -> Float[Array, "B L D"]:
    return sum(state.astype(jnp.float32) for state in states)


def _concatenate(states: States) -> Float[Array, "B L E"]:
    return jnp.concatenate(states, axis=-1)


def _weighted_sum(states: States) -> Float[Array, "B L D"]:
    return ScalarMix(name="mix")(states)


CHOICES: Mapping[str, Choice] = MappingProxyType(
    {
        "embeddings": Choice(0, 1, _sum),
        "second_to_last": Choice(-2, -1, _sum),
        "last": Choice(-1, None, _sum),
        "sum_last_four": Choice(-4, None, _sum),
        "weighted_sum_last_four": Choice(-4, None, _weighted_sum),
        "concat_last_four": Choice(-4, None, _concatenate),
        "weighted_sum_all": Choice(1, None, _weighted_sum),
    }
)
"""The weights of a weighted sum are learned with the task, as ELMo's (`layers/heads.py`)."""

LayerChoice = Annotated[str, OneOf(CHOICES)]


def supported_choices(num_hidden_layers: int) -> list[str]:
    """Returns the names of the choices for which an encoder has enough layers."""
    return [name for name, choice in CHOICES.items() if choice.min_layers <= num_hidden_layers]


def check(name: str, num_hidden_layers: int) -> None:
    """Checks that a choice exists and the encoder has enough layers for it.

    Raises:
      UserError: naming the possible choices.
    """
    if name not in CHOICES:
        raise UserError(f"no layers {name!r}: {nearest(name, CHOICES)}")
    if num_hidden_layers < CHOICES[name].min_layers:
        raise UserError(
            f"too few layers for {name!r}: got {num_hidden_layers}, expected "
            f"{CHOICES[name].min_layers} or more; choose among "
            f"{', '.join(supported_choices(num_hidden_layers))}"
        )


def select_features(encoded: Encoded, name: str) -> Float[Array, "B L E"]:
    """Computes the vector of each token from a choice of layers.

    The weights of a weighted sum, `mix`, belong to the calling module.

    Args:
      encoded: Output of an encoder with `output_hidden_states`.
      name: One of `CHOICES`.

    Raises:
      UserError: as `check`; or `encoded` has no hidden states.
    """
    if encoded.hidden_states is None:
        raise UserError(
            "features require the outputs of all layers; set "
            "--config.model.output_hidden_states=true"
        )
    check(name, len(encoded.hidden_states) - 1)
    # The last layer is the encoder's output, after a final LayerNorm where the model has one.
    states = (*encoded.hidden_states[:-1], encoded.sequence)
    choice = CHOICES[name]
    return choice.combine(states[choice.first : choice.stop])
