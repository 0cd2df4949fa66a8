"""Stacks whose layers alternate between blocks of different fields, such as attention.

In ModernBERT every third layer has global attention, the others have local attention with another
theta of their rotary embeddings (Warner et al. 2024, section 2.1.2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from bertjax.layers.stack import REMAT_POLICIES, check_remat

Parameters = Mapping[str, Any]


class AlternatingStack(nn.Module):
    """Applies `num_layers` layers; layer i is `blocks[i % len(blocks)]` with its own parameters.

    The blocks may differ in everything but the names and shapes of their parameters, which are
    under `block` with a leading layer axis, as in `Stack`. The loop is over cycles of the blocks:
    each of them is compiled once, layers of an incomplete last cycle once more.

    Attributes:
      blocks: Modules that map (x, mask, train=) to the next x.
      num_layers: N.
      remat: Rematerialisation policy (`layers/stack.py`).
      unroll: Layers compiled in one piece (`layers/stack.py`), in whole cycles and at least one.
      keep_hidden_states: Whether the output of every layer is returned too.
      init_blocks: Modules that initialise the parameters, layer i by the i-th of them modulo their
        number; default `blocks`.
    """

    blocks: tuple[nn.Module, ...]
    num_layers: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False
    init_blocks: tuple[nn.Module, ...] = ()

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last output and, on request, all outputs with a leading layer axis."""
        check_remat(self.remat)
        blocks = self.init_blocks or self.blocks
        params = self.param("block", lambda key: init_layers(blocks, self.num_layers, key, x, mask))
        layers = params, None
        if self.has_rng("dropout"):
            rngs = jax.random.split(self.make_rng("dropout"), self.num_layers)
            layers = params, rngs

        def apply_block(block: nn.Module, x: Array, params: Parameters, rng: Array | None):
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            rngs = {} if rng is None else {"dropout": rng}
            return block.apply({"params": params}, x, mask, train=train, rngs=rngs)

        if self.remat != "none":
            policy = REMAT_POLICIES[self.remat]
            apply_block = jax.checkpoint(apply_block, policy=policy, static_argnums=0)

        def apply_cycle(x: Array, layers: PyTree) -> tuple[Array, Array | None]:
            states = []
            for number, block in enumerate(self.blocks[: _length(layers)]):
                x = apply_block(block, x, *jax.tree.map(lambda leaf, at=number: leaf[at], layers))
                states.append(x)
            return x, jnp.stack(states) if self.keep_hidden_states else None

        size = len(self.blocks)
        cycles, rest = divmod(self.num_layers, size)
        whole = jax.tree.map(
            lambda leaf: leaf[: cycles * size].reshape(cycles, size, *leaf.shape[1:]), layers
        )
        unroll = max(min(self.unroll // size, cycles), 1)
        x, states = lax.scan(apply_cycle, x, whole, length=cycles, unroll=unroll)
        if self.keep_hidden_states:
            states = states.reshape(-1, *x.shape)
        if rest:
            x, last = apply_cycle(x, jax.tree.map(lambda leaf: leaf[cycles * size :], layers))
            states = None if states is None else jnp.concatenate([states, last])
        return x, states


def init_layers(
    blocks: Sequence[nn.Module], num_layers: int, key: Array, x: Array, mask: PyTree
) -> Parameters:
    """Initialises the parameters of all layers [N, ...], layer i by `blocks[i % len(blocks)]`.

    Raises:
      ValueError: the blocks have parameters of different names or shapes.
    """

    def init(block: nn.Module, key: Array) -> Parameters:
        return block.init(key, x, mask, train=False)["params"]

    keys, size = jax.random.split(key, num_layers), len(blocks)
    shapes = [jax.eval_shape(lambda key, b=block: init(b, key), key) for block in blocks]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(
            "blocks of an alternating stack: got parameters of different names or shapes, "
            "expected the same for all"
        )
    # Not vmap: JAX cannot batch cuDNN's attention with a mask that the heads share.
    parts = [
        lax.map(lambda key, b=block: init(b, key), keys[number::size])
        for number, block in enumerate(blocks[:num_layers])
    ]
    layer = np.concatenate([np.arange(num_layers)[n::size] for n in range(len(parts))])
    params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[np.argsort(layer)], *parts)
    return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: "layers"})


def _length(layers: PyTree) -> int:
    return len(jax.tree.leaves(layers)[0])
