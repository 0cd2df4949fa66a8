"""Muon (Jordan et al. 2024): orthogonalised momentum for matrices, AdamW for all other parameters.

The scale of an update is that of Liu et al. 2025 (section 2.2), so that matrices and the rest share
a learning rate and weight decay. optax.contrib has a Muon as well, whose scaling depends on the
version of optax.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from bertjax.constraints import PositiveFloat, PositiveInt, ShareBelowOne
from bertjax.train import matrices, sharding
from bertjax.train.optimizer import (
    SkippableTransformation,
    add_decayed_weights,
    parameter_name,
    scale_by_adam,
)
from bertjax.train.optimizers import adamw

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the Newton-Schulz iteration a X + b (X X') X + c (X X')^2 X, as published: five steps
bring singular values from (0.01, 1] to about (0.7, 1.2)."""
NORM_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Optimizer):
    """AdamW's fields are those of embeddings, heads, biases and scales; the decay is of all.

    Attributes:
      muon_momentum: Decay of the momentum of matrices, with Nesterov's look-ahead.
      muon_steps: Iterations of Newton-Schulz.
      muon_rms: RMS of a matrix's update, as AdamW's usual one (Liu et al. 2025, section 2.2).
    """

    muon_momentum: ShareBelowOne = 0.95
    muon_steps: PositiveInt = 5
    muon_rms: PositiveFloat = 0.2

    has_mup_rule = False  # `muon_rms` fixes the scale of an update

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        muon = _scale_by_muon(self.muon_momentum, self.muon_steps, self.muon_rms)
        adam = scale_by_adam(self.adam_b1, self.adam_b2, self.adam_eps)
        other = optax.masked(adam, lambda params: _matrices(params, chosen=False))
        return (
            optax.masked(muon, lambda params: _matrices(params, chosen=True)),
            SkippableTransformation(*other),
            add_decayed_weights(self.weight_decay),
        )


def _matrices(params: PyTree, *, chosen: bool) -> PyTree:
    """Maps the hidden matrices to `chosen`: kernels in an encoder, which map vectors to vectors.

    Heads over classes or the vocabulary are not among them, nor are embeddings.
    """

    def is_hidden(path: tuple, parameter: Any) -> bool:
        names = parameter_name(path)
        matrix = matrices.matrix_of(path, sharding.unbox(parameter).shape)
        in_encoder = "encoder" in names and names[-1] == "kernel"
        return (in_encoder and matrix is not None and min(matrix.sizes) > 1) == chosen

    return sharding.map_boxed(is_hidden, params)


class MuonState(NamedTuple):
    """The momentum of the matrices."""

    momentum: PyTree


def _scale_by_muon(decay: float, steps: int, update_rms: float) -> optax.GradientTransformation:
    """Orthogonalises the momentum of each matrix of each layer."""

    def direction(path: tuple, momentum: Array, gradient: Array) -> Array:
        matrix = matrices.matrix_of(path, momentum.shape)
        assert matrix is not None
        nesterov_momentum = decay * momentum + (1 - decay) * gradient
        by_layer = nesterov_momentum.reshape(*matrix.shape[: matrix.leading], *matrix.sizes)
        # An orthogonal matrix of these sizes has an RMS of max(sizes) ** -0.5.
        scale = update_rms * math.sqrt(max(matrix.sizes))
        return scale * orthogonalise(by_layer, steps).reshape(matrix.shape)

    def init(params: PyTree) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(gradient, state, params=None):
        momentum = jax.tree.map(
            lambda old, new: decay * old + (1 - decay) * new, state.momentum, gradient
        )
        directions = jax.tree_util.tree_map_with_path(direction, momentum, gradient)
        return directions, MuonState(momentum)

    return optax.GradientTransformation(init, update)


def orthogonalise(
    matrix: Float[Array, "*layers rows columns"], steps: int
) -> Float[Array, "*layers rows columns"]:
    """Newton-Schulz iteration towards U V' of the singular value decomposition U S V'."""
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if is_tall else matrix
    norm = jnp.sqrt(jnp.sum(jnp.square(wide), axis=(-2, -1), keepdims=True))
    a, b, c = COEFFICIENTS
    x = wide / (norm + NORM_EPSILON)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
