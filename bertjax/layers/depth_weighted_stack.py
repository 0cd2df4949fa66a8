"""Stack whose layers read weighted sums of all earlier outputs, as in GPT-BERT.

Charpentier & Samuel 2024; depth-weighted averages of DenseFormer (Pagliardini et al. 2024, section
3), here after each half of a block, as in GPT-BERT's released code.

The layers are scanned. Automatic differentiation of such a scan would keep all earlier outputs
once per layer, because the gradients of the weights need them, and would add to the gradients of
all of them in every layer. Here the backward pass keeps the gradients of the sums instead: the
gradient of an output is a weighted sum of them, and that of the weights is one matrix product of
all gradients and all outputs at the end.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from bertjax.layers.alternating_stack import init_layers
from bertjax.layers.stack import REMAT_POLICIES, check_remat

SUBLAYERS = ("add_attention", "add_feed_forward")
"""Methods of a block, in order."""


class DepthWeightedStack(nn.Module):
    """Applies `layer` `num_layers` times, each half of it to a weighted sum of all earlier outputs.

    The k-th of 2N sums has k + 1 weights: of the input of the stack and of the outputs of k halves,
    before summation. Initially the last weight is 1 and the others are 0, which equals a stack
    without sums. The weights are under `depth_weights`, [N (2N + 3)]; parameters of blocks
    are under `block` with a leading layer axis, as in `Stack`.

    Attributes:
      layer: A module with the methods `SUBLAYERS`, which map (x, mask, train=) to the next x.
      num_layers: N.
      remat: Rematerialisation policy (`layers/stack.py`), of each half.
      unroll: Layers compiled in one piece (`layers/stack.py`).
      keep_hidden_states: Whether the sum after every layer is returned too.
      init_blocks: Modules that initialise the parameters of each layer; default `layer` for all.
    """

    layer: nn.Module
    num_layers: int
    remat: str = "none"
    unroll: int = 1
    keep_hidden_states: bool = False
    init_blocks: tuple[nn.Module, ...] = ()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"], mask: PyTree, *, train: bool
    ) -> tuple[Float[Array, "B L D"], Float[Array, "N B L D"] | None]:
        """Returns the last sum and, on request, those after each layer with a leading axis."""
        check_remat(self.remat)
        blocks = self.init_blocks or (self.layer,)
        params = self.param("block", lambda key: init_layers(blocks, self.num_layers, key, x, mask))
        axes = nn.with_logical_partitioning(init_weights, (None,))
        num_sums = len(SUBLAYERS) * self.num_layers
        weights = weight_matrix(self.param("depth_weights", axes, num_sums))
        keys = None
        if self.has_rng("dropout"):
            # A key for each half: their dropout masks are sampled under the same names.
            keys = jax.random.split(self.make_rng("dropout"), num_sums)
            keys = keys.reshape(self.num_layers, len(SUBLAYERS))

        def apply_sublayer(sublayer: str, x: Array, params: PyTree, key: Array | None) -> Array:
            x = nn.with_logical_constraint(x, ("batch", "length", None))
            rngs = {} if key is None else {"dropout": key}
            return self.layer.apply(
                {"params": params}, x, mask, train=train, rngs=rngs, method=sublayer
            )

        unroll = min(self.unroll, self.num_layers)
        if self.remat != "none":
            # As in `Stack`: unrolled layers need protection from common subexpression elimination.
            apply_sublayer = jax.checkpoint(
                apply_sublayer,
                policy=REMAT_POLICIES[self.remat],
                prevent_cse=unroll >= self.num_layers,
                static_argnums=0,
            )

        def apply_layers(params: PyTree, x: Array, outputs: Array, weights: Array):
            """Returns the last sum, those after other layers, and all outputs."""

            def apply_layer(outputs: Array, layer: PyTree) -> tuple[Array, Array | None]:
                params, keys, number = layer
                first = None
                for half, sublayer in enumerate(SUBLAYERS):
                    position = len(SUBLAYERS) * number + half
                    x, outputs = _weighted_sum(weights, position, outputs)
                    first = x if first is None else first
                    y = apply_sublayer(sublayer, x, params, None if keys is None else keys[half])
                    outputs = _set_output(weights, position + 1, outputs, y)
                return outputs, first if self.keep_hidden_states else None

            outputs = _set_output(weights, 0, outputs, x)
            layers = params, keys, jnp.arange(self.num_layers)
            outputs, states = lax.scan(
                apply_layer, outputs, layers, length=self.num_layers, unroll=unroll
            )
            last, outputs = _weighted_sum(weights, num_sums, outputs)
            return (last, states), outputs

        last, states = _differentiable(apply_layers, params, x, weights)
        if states is not None:
            states = jnp.concatenate([states[1:], last[None]])
        return last, states


def init_weights(key: Array, num_sums: int) -> Float[Array, " W"]:
    """Weights of all sums, one after another: 1 for the newest output of each, else 0."""
    del key
    return jnp.concatenate([jnp.zeros(2 + sum_).at[-1].set(1.0) for sum_ in range(num_sums)])


def weight_matrix(weights: Float[Array, " W"]) -> Float[Array, "S S"]:
    """Weights of all sums, a row each, with a first row that selects the input of the stack."""
    num_outputs = round(np.sqrt(2 * weights.size + 2.25) - 0.5)
    rows, columns = np.tril_indices(num_outputs)
    return jnp.zeros((num_outputs,) * 2).at[0, 0].set(1.0).at[rows[1:], columns[1:]].set(weights)


def _differentiable(
    apply_layers: Callable[..., Any], params: PyTree, x: Array, weights: Float[Array, "S S"]
) -> Any:
    """Applies all layers, with the backward pass that the docstring of this module describes."""
    empty = jnp.zeros((len(weights), *x.shape), x.dtype)
    empty = nn.with_logical_constraint(empty, (None, "batch", "length", None))
    # Constants: arrays that `apply_layers` closes over, such as embeddings of relative positions.
    apply_layers, constants = jax.closure_convert(apply_layers, params, x, empty, weights)

    @jax.custom_vjp
    def apply(params, x, weights, *constants):
        return apply_layers(params, x, empty, weights, *constants)[0]

    def forward(params, x, weights, *constants):
        result, transpose, outputs = jax.vjp(
            lambda params, x, empty, *constants: apply_layers(
                params, x, empty, weights, *constants
            ),
            params,
            x,
            empty,
            *constants,
            has_aux=True,
        )
        return result, (transpose, outputs)

    def backward(residuals, cotangents):
        transpose, outputs = residuals
        params, x, sums, *constants = transpose(cotangents)
        weights = jnp.einsum(
            "sn,tn->st",
            sums.reshape(len(sums), -1),
            outputs.reshape(len(outputs), -1),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return params, x, weights, *constants

    apply.defvjp(forward, backward)
    return apply(params, x, weights, *constants)


@jax.custom_vjp
def _weighted_sum(
    weights: Float[Array, "S S"], row: Array | int, outputs: Float[Array, "S B L D"]
) -> tuple[Float[Array, "B L D"], Float[Array, "S B L D"]]:
    """Returns the sum of outputs by a row of the weights, and the outputs.

    What is passed back for `outputs` is not its gradient: it has the gradients of the sums.
    """
    return _sum(weights[row], outputs), outputs


def _sum_forward(weights, row, outputs):
    # Not `_weighted_sum`: a second-order optimizer would apply its rule, which is no derivative.
    return (_sum(weights[row], outputs), outputs), row


def _sum_backward(row, cotangents):
    cotangent, sums = cotangents
    return None, None, sums.at[row].set(cotangent)


_weighted_sum.defvjp(_sum_forward, _sum_backward)


@jax.custom_vjp
def _set_output(
    weights: Float[Array, "S S"],
    position: Array | int,
    outputs: Float[Array, "S B L D"],
    output: Float[Array, "B L D"],
) -> Float[Array, "S B L D"]:
    """Returns `outputs` with `output` at a position.

    The gradient of `output` is the sum of the gradients of the sums times a column of the weights.
    """
    del weights
    return outputs.at[position].set(output)


def _set_forward(weights, position, outputs, output):
    return outputs.at[position].set(output), (weights, position)


def _set_backward(residuals, sums):
    weights, position = residuals
    return None, None, sums, _sum(weights[:, position], sums)


_set_output.defvjp(_set_forward, _set_backward)


def _sum(weights: Float[Array, " S"], arrays: Float[Array, "S B L D"]) -> Float[Array, "B L D"]:
    """Sum of arrays times their weights, in float32: the form that is faster on the platform."""
    return lax.platform_dependent(weights, arrays, cpu=_add, default=_reduce)


def _add(weights: Float[Array, " S"], arrays: Float[Array, "S B L D"]) -> Float[Array, "B L D"]:
    """One addition per array: XLA does not vectorise a reduction over the first axis on CPUs."""
    products = (
        weight * array.astype(jnp.float32) for weight, array in zip(weights, arrays, strict=True)
    )
    return jnp.asarray(sum(products)).astype(arrays.dtype)


def _reduce(weights: Float[Array, " S"], arrays: Float[Array, "S B L D"]) -> Float[Array, "B L D"]:
    """One reduction, which moves fewer bytes on TPUs."""
    products = weights[:, None, None, None] * arrays.astype(jnp.float32)
    return products.sum(axis=0).astype(arrays.dtype)
