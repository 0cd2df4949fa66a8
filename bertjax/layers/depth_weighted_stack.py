"""A stack whose layers read weighted sums of all earlier outputs (DenseFormer, GPT-BERT).

Pagliardini et al. 2024, section 3: depth-weighted averages, here after each half of a block, as in
the released code of GPT-BERT (Charpentier & Samuel 2024).

The loop is not scanned: a carry of all outputs would be a residual of every iteration.
"""

import functools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bertjax.errors import UserError, nearest
from bertjax.layers.alternating_stack import AlternatingStack, Parameters
from bertjax.layers.stack import REMAT_POLICIES

SUBLAYERS = ("add_attention", "add_feed_forward")
"""Methods of a block, in order."""


class DepthWeightedStack(AlternatingStack):
    """Applies `num_layers` blocks; after each half the sequence is a weighted sum of all so far.

    The k-th of 2N sums has k + 1 weights: of the input of the stack and of the outputs of k halves,
    before summation. Initially the last weight is 1 and the others are 0, which equals a stack
    without sums. The weights are under `depth_weights`, [N (2N + 3)]; parameters of blocks
    are as in `AlternatingStack`. All layers are compiled in one piece.
    """

    @nn.compact
    def __call__(self, x: Array, mask: PyTree, *, train: bool) -> tuple[Array, Array | None]:
        """Returns the last sum and, on request, those after each layer with a leading axis."""
        if self.remat not in REMAT_POLICIES:
            raise UserError(
                f"no remat policy {self.remat!r}: {nearest(self.remat, REMAT_POLICIES)}"
            )
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
