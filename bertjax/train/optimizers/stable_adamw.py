"""StableAdamW (Wortsman et al. 2023, section 3.4, algorithm 2): AdamW with update clipping.

Where the second moment of a parameter is out of date, its gradient is larger than expected, and its
learning rate is lowered in proportion, as in Adafactor (Shazeer & Stern 2018, section 6). This
replaces gradient clipping: set `max_grad_norm` to 0 as ModernBERT does (Warner et al. 2024, 2.2).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from bertjax.constraints import NonNegativeFloat, ShareBelowOne
from bertjax.train import matrices
from bertjax.train.optimizer import (
    UNSCALED,
    SkippableTransformation,
    add_decayed_weights,
    scale_by_adam,
)
from bertjax.train.optimizers import adamw


@dataclasses.dataclass(frozen=True)
class Optimizer(adamw.Optimizer):
    """The hyperparameters of AdamW; the defaults are ModernBERT's (Warner et al. 2024, appendix A).

    Attributes:
      weight_decay: Decoupled from the gradient; a step removes `learning_rate * weight_decay` of a
        parameter. ModernBERT removes 1e-5 at its peak of 8e-4.
    """

    weight_decay: NonNegativeFloat = 0.0125
    adam_b2: ShareBelowOne = 0.98

    def transforms(
        self, mup_rule: optax.GradientTransformation = UNSCALED
    ) -> tuple[optax.GradientTransformation, ...]:
        """As in AdamW."""
        return (_stable_adamw(self, mup_rule),)


def _stable_adamw(
    fields: Optimizer, mup_rule: optax.GradientTransformation
) -> SkippableTransformation:
    """AdamW whose direction, weight decay included, is divided by max(1, RMS) in each layer.

    RMS^2 is the mean of gradient^2 / max(second moment, eps^2) over a parameter of a layer.
    """
    adam = scale_by_adam(fields.adam_b1, fields.adam_b2, fields.adam_eps)
    decay = add_decayed_weights(fields.weight_decay)

    def clip(path: tuple, direction: Array, gradient: Array, second_moment: Array) -> Array:
        bounded = jnp.maximum(second_moment, fields.adam_eps**2)
        ratio = matrices.rms(path, gradient * jax.lax.rsqrt(bounded))
        return direction / jnp.maximum(1.0, ratio)

    def update(gradient, state, params, *, finite, has_gradient, **_):
        direction, state = adam.update(gradient, state, finite=finite)
        direction, _ = mup_rule.update(direction, mup_rule.init(params))
        direction, _ = decay.update(
            direction, decay.init(params), params, has_gradient=has_gradient
        )
        unbiased = optax.tree.bias_correction(state.nu, fields.adam_b2, state.count)
        clipped = jax.tree_util.tree_map_with_path(clip, direction, gradient, unbiased)
        return clipped, state

    return SkippableTransformation(adam.init, update)
