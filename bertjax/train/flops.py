"""Model FLOPs: what a computation needs, counted from its program rather than from a formula.

Counted are the multiplications and additions of matrix products and convolutions, as is the
convention of PaLM (Chowdhery et al. 2022, appendix B): "model FLOPs utilisation" is what the model
needs, without recomputation, over what the devices could have done in that time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from bertjax.layers.frozen import FORWARD

BACKWARD_PER_FORWARD = 2
"""Each product of the forward pass has two in the backward pass, one for either operand."""


def training_flops(forward: Callable, *arguments: Any) -> int:
    """FLOPs of one forward and backward pass; what is frozen has no backward pass.

    Args:
      forward: what computes the loss. It is traced, not run.
      *arguments: arrays or `jax.ShapeDtypeStruct`s.
    """
    return _count(_needed(forward, arguments), BACKWARD_PER_FORWARD)


def flops(function: Callable, *arguments: Any) -> int:
    """FLOPs of the products in one call of a function, which is traced, not run.

    Raises:
      ValueError: there are products in a loop whose length depends on values.
    """
    return _count(_needed(function, arguments), 0)


def _needed(function: Callable, arguments: Sequence[Any]) -> core.Jaxpr:
    """The program without what nothing of its result needs: a compiler drops that."""
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    needed, _ = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return needed


def _count(program: core.Jaxpr, backward: int) -> int:
    return sum(
        (1 + backward) * _own(equation) + _inner(equation, backward) for equation in program.eqns
    )


def _own(equation: core.JaxprEqn) -> int:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        summed = math.prod(left[axis] for axis in contracted)
    elif equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_axis = equation.params["dimension_numbers"].rhs_spec[0]
        summed = math.prod(kernel) // kernel[output_axis]
    else:
        return 0
    return 2 * summed * math.prod(equation.outvars[0].aval.shape)


def _inner(equation: core.JaxprEqn, backward: int) -> int:
    """What the programs inside an equation need: a scan's body, as often as it runs."""
    name, parameters = equation.primitive.name, equation.params
    if parameters.get("name") == FORWARD:
        backward = 0
    counts = [_count(program, backward) for program in _programs(equation)]
    if name == "scan":
        return parameters["length"] * sum(counts)
    if name == "pallas_call":
        return math.prod(parameters["grid_mapping"].grid) * sum(counts)
    if name == "shard_map":
        # Releases of JAX differ in the name.
        axes = parameters.get("newly_manual_axes") or parameters["manual_axes"]
        return math.prod(parameters["mesh"].shape[axis] for axis in axes) * sum(counts)
    if name == "cond":
        return max(counts)
    if name == "while" and sum(counts):
        raise ValueError("products inside a while loop: how often it runs is not known")
    return sum(counts)


def _programs(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
