"""A stack in which groups of consecutive layers share a block (ALBERT's `num_hidden_groups`).

`albert_config.json` describes this by `num_hidden_groups` and `inner_group_num`: a layer applies
all blocks of its group, one after the other.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from bertjax.layers.stack import REMAT_POLICIES, check_remat

Parameters = Mapping[str, Any]


def group_of_layers(num_layers: int, num_groups: int) -> list[int]:
    """The number of the group that each layer applies.

    Computed in floating point as in the code of transformers: for some sizes (18 layers in 14
    groups) its rounding assigns a layer to another group than exact arithmetic does.
    """
    return [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]


class GroupedStack(nn.Module):
    """Applies `num_layers` layers, each of them the blocks of one of `num_groups` groups.

    The parameters are under `group`, with two leading axes: the groups, and the blocks of a group.
    Layers that share a group differ in dropout.

    Attributes:
      block: A module that maps (x, mask, train=) to the next x.
      num_layers: N.
      num_groups: G, from 1 to N.
      blocks_per_group: I, blocks that one layer applies.
      remat: Rematerialisation policy (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`).
      keep_hidden_states: Whether the output of every layer is returned too.
    """

    block: nn.Module
    num_layers: int
    num_groups: int
    blocks_per_group: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last output and, on request, all layers' with a leading layer axis."""
        check_remat(self.remat)
        groups = self.param("group", self._init_groups, x, mask)
        rngs = None
        if self.has_rng("dropout"):
            shape = (self.num_layers, self.blocks_per_group)
            rngs = jax.random.split(self.make_rng("dropout"), shape)

        def apply_block(x: Array, block: tuple[Parameters, Array | None]) -> tuple[Array, None]:
            params, rng = block
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            rngs = {} if rng is None else {"dropout": rng}
            return self.block.apply({"params": params}, x, mask, train=train, rngs=rngs), None

        if self.remat != "none":
            policy = REMAT_POLICIES[self.remat]
            apply_block = jax.checkpoint(apply_block, policy=policy)

        def apply_group(x: Array, group: tuple[Parameters, Array | None], repeats: int):
            params, rngs = group

            def apply_layer(x: Array, rngs: Array | None) -> tuple[Array, Array | None]:
                x, _ = lax.scan(apply_block, x, (params, rngs), unroll=self.unroll > 1)
                return x, x if self.keep_hidden_states else None

            return lax.scan(apply_layer, x, rngs, repeats, unroll=min(self.unroll, repeats))

        states, group, layer = [], 0, 0
        # Consecutive groups with the same number of layers share a scan: a single one if the groups
        # divide the layers evenly.
        for repeats, count in self._runs():
            params = jax.tree.map(lambda leaf, at=group, n=count: leaf[at : at + n], groups)
            own = None
            if rngs is not None:
                own = rngs[layer : layer + count * repeats]
                own = own.reshape(count, repeats, self.blocks_per_group)
            x, hidden = lax.scan(
                lambda x, group, n=repeats: apply_group(x, group, n),
                x,
                (params, own),
                unroll=min(max(self.unroll // repeats, 1), count),
            )
            states.append(hidden)
            group, layer = group + count, layer + count * repeats
        if not self.keep_hidden_states:
            return x, None
        return x, jnp.concatenate([hidden.reshape(-1, *x.shape) for hidden in states])

    def _runs(self) -> list[tuple[int, int]]:
        """(layers of a group, groups): consecutive groups that are applied equally often."""
        groups = group_of_layers(self.num_layers, self.num_groups)
        repeats = [groups.count(group) for group in range(self.num_groups)]
        return [(number, len(list(run))) for number, run in itertools.groupby(repeats)]

    def _init_groups(self, rng: Array, x: Array, mask: PyTree) -> Parameters:
        """Initialises the parameters of all groups, [G, I, ...], independently for each block."""

        def init(rng: Array) -> Parameters:
            return self.block.init(rng, x, mask, train=False)["params"]

        rngs = jax.random.split(rng, (self.num_groups, self.blocks_per_group))
        params = nn.meta.add_axis(jax.vmap(jax.vmap(init))(rngs), 0, {nn.PARTITION_NAME: "layers"})
        # One logical axis cannot name two axes of an array; neither of these is ever sharded.
        return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: None})
