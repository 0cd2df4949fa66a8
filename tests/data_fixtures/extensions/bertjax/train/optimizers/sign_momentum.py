"""Sign momentum: the sign of an average of gradients, as Signum (Bernstein et al. 2018)."""

import dataclasses

import optax

from bertjax.constraints import ShareBelowOne


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Moves every parameter by the learning rate, up or down.

    Attributes:
      momentum: Decay of the average.
    """

    momentum: ShareBelowOne = 0.9

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        return (optax.ema(self.momentum), optax.scale_by_sign())
