"""Nonlinearities, by the names that published configs give them.

For its gradient each keeps its input alone: the rest is computed again.
"""

import functools
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from bertjax.errors import UserError, nearest

_from_its_input = functools.partial(jax.checkpoint, prevent_cse=False)


@_from_its_input
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The normal distribution function of x, times x: exact (Hendrycks & Gimpel 2016)."""
    return jax.nn.gelu(x, approximate=False)


@_from_its_input
def gelu_new(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same with a tanh in place of the error function, as in GPT-2 and ALBERT."""
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_new,
    "relu": jax.nn.relu,
    "silu": _from_its_input(jax.nn.silu),
    "tanh": jax.numpy.tanh,
}


def activation(name: str) -> Callable[[Array], Array]:
    """The function that `hidden_act` names in a published config.

    Raises:
      UserError: no such function.
    """
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]
