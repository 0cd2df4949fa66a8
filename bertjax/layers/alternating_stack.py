"""Stacks whose layers alternate between blocks of different fields, such as attention.

In ModernBERT every third layer has global attention, the others have local attention with another
theta of their rotary embeddings (Warner et al. 2024, section 2.1.2).

In GPT-BERT (Charpentier & Samuel 2024), the layers also read weighted sums of all earlier outputs:
depth-weighted averages (DenseFormer, Pagliardini et al. 2024, section 3), here after each half of a
block, as in its released code.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from bertjax.layers.stack import REMAT_POLICIES, check_remat

Parameters = Mapping[str, Any]

SUBLAYERS = ("add_attention", "add_feed_forward")
"""Methods of a block, in order."""


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
    """

    blocks: tuple[nn.Module, ...]
    num_layers: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last output and, on request, all outputs with a leading layer axis."""
        check_remat(self.remat)
        layers = self.param("block", self._init_layers, x, mask), None
        if self.has_rng("dropout"):
            rngs = jax.random.split(self.make_rng("dropout"), self.num_layers)
            layers = layers[0], rngs

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

    def _init_layers(self, rng: Array, x: Array, mask: PyTree) -> Parameters:
        """Initialises the parameters of all layers [N, ...], each by its own block."""

        def init(block: nn.Module, rng: Array) -> Parameters:
            return block.init(rng, x, mask, train=False)["params"]

        rngs, size = jax.random.split(rng, self.num_layers), len(self.blocks)
        shapes = [jax.eval_shape(lambda key, b=block: init(b, key), rng) for block in self.blocks]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                "blocks of an alternating stack: got parameters of different names or shapes, "
                "expected the same for all"
            )
        # Not vmap: JAX cannot batch cuDNN's attention with a mask that the heads share.
        parts = [
            lax.map(lambda key, b=block: init(b, key), rngs[number::size])
            for number, block in enumerate(self.blocks[: self.num_layers])
        ]
        layer = np.concatenate([np.arange(self.num_layers)[n::size] for n in range(len(parts))])
        params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[np.argsort(layer)], *parts)
        return nn.meta.add_axis(params, 0, {nn.PARTITION_NAME: "layers"})


def _length(layers: PyTree) -> int:
    return len(jax.tree.leaves(layers)[0])


class DepthWeightedStack(AlternatingStack):
    """Applies `num_layers` blocks, each half to a weighted sum of all earlier outputs.

    The k-th of 2N sums has k + 1 weights: of the input of the stack and of the outputs of k halves,
    before summation. Initially the last weight is 1 and the others are 0, which equals a stack
    without sums. The weights are under `depth_weights`, [N (2N + 3)]; parameters of blocks
    are as in `AlternatingStack`. All layers are compiled in one piece: a scan with all outputs as
    its carry would keep them as residuals of every iteration.
    """

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last sum and, on request, those after each layer with a leading axis."""
        check_remat(self.remat)
        layers = self.param("block", self._init_layers, x, mask)
        num_sums = len(SUBLAYERS) * self.num_layers
        axes = nn.with_logical_partitioning(init_weights, (None,))
        weights = self.param("depth_weights", axes, num_sums)
        rngs = None
        if self.has_rng("dropout"):
            # A key for each half: their dropout masks are sampled under the same names.
            rngs = jax.random.split(self.make_rng("dropout"), num_sums)

        def apply_sublayer(
            block: nn.Module, sublayer: str, x: Array, params: Parameters, rng: Array | None
        ) -> Array:
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            rngs = {} if rng is None else {"dropout": rng}
            return block.apply({"params": params}, x, mask, train=train, rngs=rngs, method=sublayer)

        if self.remat != "none":
            # As in `Stack`: unrolled layers need protection from common subexpression elimination.
            policy = REMAT_POLICIES[self.remat]
            apply_sublayer = jax.checkpoint(apply_sublayer, policy=policy, static_argnums=(0, 1))

        outputs, states, begin = [x], [], 0
        for number in range(num_sums):
            layer, sublayer = divmod(number, len(SUBLAYERS))
            params = jax.tree.map(lambda leaf, at=layer: leaf[at], layers)
            rng = None if rngs is None else rngs[number]
            block = self.blocks[layer % len(self.blocks)]
            outputs.append(apply_sublayer(block, SUBLAYERS[sublayer], x, params, rng))
            x = weighted_sum(weights[begin : begin + len(outputs)], tuple(outputs))
            begin += len(outputs)
            if sublayer == len(SUBLAYERS) - 1:
                states.append(x)
        return x, jnp.stack(states) if self.keep_hidden_states else None


def init_weights(key: Array, num_sums: int) -> Float[Array, " W"]:
    """Weights of all sums, one after another: 1 for the newest output of each, else 0."""
    del key
    return jnp.concatenate([jnp.zeros(2 + sum_).at[-1].set(1.0) for sum_ in range(num_sums)])


# The outputs are the only residuals, in their own dtype.
@functools.partial(jax.checkpoint, prevent_cse=False)
def weighted_sum(
    weights: Float[Array, " n"], outputs: Sequence[Float[Array, "B L D"]]
) -> Float[Array, "B L D"]:
    """Sum of arrays times their weights, in float32."""
    total = sum(
        weight * output.astype(jnp.float32) for weight, output in zip(weights, outputs, strict=True)
    )
    return jnp.asarray(total).astype(outputs[0].dtype)
