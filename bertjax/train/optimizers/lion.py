"""Lion (Chen et al. 2023, algorithm 2): the sign of a momentum, with one moment in place of two."""

import dataclasses

import optax

from bertjax.constraints import NonNegativeFloat, ShareBelowOne
from bertjax.train.optimizer import DECAY_BELOW_ONE, add_decayed_weights


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Every element moves by the learning rate, up or down.

    The learning rate is three to ten times lower than AdamW's and the weight decay higher by the
    same factor (section 5), hence the default.

    Attributes:
      weight_decay: Decoupled from the gradient.
      lion_b1: Share of the momentum in the direction.
      lion_b2: Decay of the momentum.
    """

    weight_decay: NonNegativeFloat = 0.1
    lion_b1: ShareBelowOne = 0.9
    lion_b2: ShareBelowOne = 0.99

    relations = (DECAY_BELOW_ONE,)

    def transforms(self) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction."""
        return (
            optax.scale_by_lion(self.lion_b1, self.lion_b2),
            add_decayed_weights(self.weight_decay),
        )
