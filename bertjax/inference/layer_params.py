"""Split stacked parameters into one array per layer, for token-by-token decoding on CPUs.

split_layers   stacked arrays [N ...] -> tuples of N arrays; on other devices as they are
stack_layers   the inverse, inside compiled functions

XLA for CPUs copies the slice of a stacked array that a layer multiplies by, for every token. If the
stack is built where the layers are applied one after the other, it reads the parts instead.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.interfaces import Params

_STACKS = ("layers", "decoder_layers")
"""Names of stacks in the parameters of decoders."""


def split_layers(params: Params) -> Params:
    """Splits the arrays of all stacks of layers along their first axis."""
    if jax.default_backend() != "cpu":
        return jax.tree.map(jnp.asarray, params)
    return _map_stacks(lambda array: tuple(map(jnp.asarray, array)), params)


def stack_layers(params: Params) -> Params:
    """Stacks the arrays of layers that `split_layers` has split."""
    return _map_stacks(
        lambda parts: jnp.stack(parts) if isinstance(parts, tuple) else parts, params
    )


def _map_stacks(change: Callable[[Any], Any], tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        name: jax.tree.map(change, branch, is_leaf=lambda leaf: isinstance(leaf, tuple))
        if name in _STACKS
        else _map_stacks(change, branch)
        for name, branch in tree.items()
    }
