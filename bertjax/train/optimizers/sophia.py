"""Sophia (Liu et al. 2023): momentum over an average of the diagonal of the Hessian, clipped."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Int

from bertjax.constraints import NonNegativeFloat, PositiveFloat, PositiveInt, ShareBelowOne
from bertjax.train.optimizer import DECAY_BELOW_ONE, add_decayed_weights


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Sophia-H (algorithms 1 and 3), by Optax.

    Every `sophia_interval` steps the gradient of one microbatch is differentiated once more.

    Attributes:
      weight_decay: Decoupled from the gradient; 0.2 in the paper.
      sophia_b1: Decay of the momentum.
      sophia_b2: Decay of the average of the Hessian's diagonal.
      sophia_eps: Lower bound of the divisor.
      sophia_gamma: Factor of the diagonal in the divisor; smaller values clip more elements.
      sophia_interval: Steps between two estimates of the diagonal.
    """

    weight_decay: NonNegativeFloat = 0.2
    sophia_b1: ShareBelowOne = 0.96
    sophia_b2: ShareBelowOne = 0.99
    sophia_eps: PositiveFloat = 1e-12
    sophia_gamma: PositiveFloat = 0.01
    sophia_interval: PositiveInt = 10

    relations = (DECAY_BELOW_ONE,)

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        # Optax exports Sophia with its learning rate alone, of which -1 leaves the direction.
        sophia = optax.contrib.sophia(
            -1.0,
            self.sophia_b1,
            self.sophia_b2,
            self.sophia_eps,
            weight_decay=0.0,
            gamma=self.sophia_gamma,
            update_interval=self.sophia_interval,
            hessian_diagonal_fn=_estimate_hessian_diagonal(),
        )
        return sophia, add_decayed_weights(self.weight_decay)


class EstimatorState(NamedTuple):
    """Number of estimates so far."""

    count: Int[Array, ""]


def _estimate_hessian_diagonal() -> optax.GradientTransformationExtraArgs:
    """Hutchinson's estimator of the diagonal of the Hessian H: u * (H u), with random signs u.

    That of Optax needs forward-mode differentiation, which functions with a backward pass of their
    own do not support.
    """

    def init(params):
        del params
        return EstimatorState(jnp.zeros((), jnp.int32))

    def update(gradient, state, params, *, obj_fn, **_):
        del gradient
        key = jax.random.fold_in(jax.random.key(0), state.count)
        signs = optax.tree.random_like(key, params, jax.random.rademacher, jnp.float32)
        product = jax.grad(lambda params: optax.tree.vdot(jax.grad(obj_fn)(params), signs))(params)
        return jax.tree.map(jnp.multiply, signs, product), EstimatorState(state.count + 1)

    return optax.GradientTransformationExtraArgs(init, update)
