"""Features of a frozen encoder, and the choice of its layers (Devlin et al. 2019, table 7).

A frozen module is applied and never trained: a teacher inside a model, or an encoder that gives
features.
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
"""Name of the inner program, by which those who count FLOPs know it."""


Teacher = Annotated[Callable[[], Pretrainer], Text()]
"""Makes a teacher; in a config, the text that names its run."""


class Frozen(nn.Module):
    """Its parameters lie in the collection "frozen": no gradient, optimizer or checkpoint sees it.

    Attributes:
      make: Makes the module; it belongs to nobody (`parent=None`).
    """

    make: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, method: Callable, *arguments: Any) -> PyTree:
        """`method(module, *arguments)`."""
        module = self.make()

        def draw() -> PyTree:
            return module.init(jax.random.key(0), *arguments, method=method)["params"]

        def forward(params: PyTree, *arguments: Any) -> PyTree:
            return lax.stop_gradient(module.apply({"params": params}, *arguments, method=method))

        forward.__name__ = FORWARD
        params = self.variable("frozen", "params", draw).value
        return jax.jit(forward)(params, *arguments)


def frozen_features(encoder: Encoder, batch: Batch, *, train: bool) -> Encoded:
    """What an encoder makes of a batch, without dropout, and so that no gradient flows to it.

    See `pretrainer.Pretrainer.encode`. Unlike a teacher's, its parameters lie where an encoder's
    lie, so that its checkpoints are whole models; the optimizer has to leave them out.
    """

    def forward(encoder: Encoder, batch: Batch) -> Encoded:
        return encoder(batch, train=False)

    forward.__name__ = FORWARD
    return lax.stop_gradient(nn.jit(forward)(encoder, batch))


States = Sequence[Float[Array, "B L D"]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Some layers that follow each other, and how they become one vector for each token.

    Attributes:
      first: The first of them: 0 is what the first layer reads, -1 the last layer.
      behind: The one behind the last of them; None for the end.
      join: Makes one of several.
    """

    first: int
    behind: int | None
    join: Callable[[States], Float[Array, "B L E"]]

    @property
    def least(self) -> int:
        """How many layers an encoder needs to have, its embeddings apart."""
        return abs(self.first)


def _sum(states: States) -> Float[Array, "B L D"]:
    return sum(state.astype(jnp.float32) for state in states)


def _concatenation(states: States) -> Float[Array, "B L E"]:
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
        "concat_last_four": Choice(-4, None, _concatenation),
        "weighted_sum_all": Choice(1, None, _weighted_sum),
    }
)
"""The weights of a weighted sum are learned with the task, as ELMo's (`layers/heads.py`)."""

LayerChoice = Annotated[str, OneOf(CHOICES)]


def of_encoder(num_hidden_layers: int) -> list[str]:
    """The names for which an encoder has enough layers."""
    return [name for name, choice in CHOICES.items() if choice.least <= num_hidden_layers]


def check(name: str, num_hidden_layers: int) -> None:
    """Refuses a name that there is not, or for which an encoder has too few layers.

    Raises:
      UserError: naming what there is.
    """
    if name not in CHOICES:
        raise UserError(f"no layers {name!r}: {nearest(name, CHOICES)}")
    if num_hidden_layers < CHOICES[name].least:
        raise UserError(
            f"layers {name!r} are of an encoder with {CHOICES[name].least} or more, this one has "
            f"{num_hidden_layers}: choose among {', '.join(of_encoder(num_hidden_layers))}"
        )


def chosen_features(encoded: Encoded, name: str) -> Float[Array, "B L E"]:
    """What the chosen layers know of each token.

    The weights of a weighted sum, `mix`, become part of the module that calls.

    Args:
      encoded: The output of an encoder that keeps its hidden states.
      name: One of `CHOICES`.

    Raises:
      UserError: see `check`; or hidden states were not kept.
    """
    if encoded.hidden_states is None:
        raise UserError(
            "features are made of all layers: set --config.model.output_hidden_states=true"
        )
    check(name, len(encoded.hidden_states) - 1)
    # The last layer is what tasks read: with a final LayerNorm, where the model has one.
    states = (*encoded.hidden_states[:-1], encoded.sequence)
    choice = CHOICES[name]
    return choice.join(states[choice.first : choice.behind])
