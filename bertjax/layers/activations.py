"""Nonlinearities, by the names that published configs give them.

For its gradient each keeps one array: the rest is computed again. What takes several operations is
worked out in float32, for what is rounded in between costs time besides digits.
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bertjax.constraints import OneOf
from bertjax.errors import UserError, nearest

Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _elementwise(function: Activation) -> Activation:
    @functools.partial(jax.checkpoint, prevent_cse=False)
    @functools.wraps(function)
    def in_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    return in_float32


@_elementwise
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The normal distribution function of x, times x: exact (Hendrycks & Gimpel 2016, section 2).

    By the error function, as BERT has it; JAX's own takes the complement of it, which keeps more
    digits where the result is nearly zero, at twice the cost.
    """
    return 0.5 * x * (1 + lax.erf(x * math.sqrt(0.5)))


@_elementwise
def gelu_new(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same with a tanh in place of the error function, as in GPT-2 and ALBERT."""
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_new": gelu_new,
    "relu": jax.nn.relu,
    "silu": _elementwise(jax.nn.silu),
    "tanh": jax.numpy.tanh,
}
ACTIVATIONS |= {
    "gelu_python": gelu,
    "gelu_pytorch_tanh": gelu_new,
    "gelu_python_tanh": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_new,
    "swish": ACTIVATIONS["silu"],
}
"""Other names of the same functions in transformers, which a config keeps as it has them."""


ActivationName = Annotated[str, OneOf(ACTIVATIONS)]
HeadActivationName = Annotated[str, OneOf(("", *ACTIVATIONS))]
"""Of a prediction head; "" for the encoder's."""


def activation(name: str) -> Activation:
    """The function that `hidden_act` names in a published config.

    Raises:
      UserError: no such function.
    """
    if name not in ACTIVATIONS:
        raise UserError(f"no activation {name!r}: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]
