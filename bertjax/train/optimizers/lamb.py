"""LAMB (You et al. 2020): AdamW with a trust ratio for each layer, for large batches."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.train.optimizer import NO_DECAY, leading_axes, parameter_name
from bertjax.train.optimizers import adamw


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Optimizer):
    """AdamW followed by the trust ratio; same hyperparameters and defaults."""

    has_mup_rule = False  # the trust ratio would undo it

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        return (*super().transforms(), scale_by_trust_ratio())


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Scale by |parameter| / |update|, one ratio per layer (You et al. 2020, algorithm 2).

    Parameters of a scanned stack hold all layers in one array; each layer has its own ratio, and in
    a stack of groups each block of a group. Parameters without weight decay keep their update, as
    in the published code: biases are initialised to zero, and a ratio proportional to the parameter
    would keep them at zero.
    """

    def update(updates, state, params):
        return jax.tree_util.tree_map_with_path(_scale_leaf, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scale_leaf(path: tuple, update: Array, parameter: Array) -> Array:
    names = parameter_name(path)
    if names[-1].endswith(NO_DECAY):
        return update
    axes = tuple(range(leading_axes(names), update.ndim))

    def norm(x):
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

    length, step = norm(parameter), norm(update)
    defined = (length > 0) & (step > 0)
    return update * jnp.where(defined, length / jnp.where(defined, step, 1.0), 1.0)
