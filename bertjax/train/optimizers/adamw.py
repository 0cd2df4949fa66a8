"""AdamW (Loshchilov & Hutter 2019): Adam with decoupled weight decay."""

import dataclasses

import optax

from bertjax.constraints import Epsilon, NonNegativeFloat, ShareBelowOne
from bertjax.train.optimizer import (
    DECAY_BELOW_ONE,
    UNSCALED,
    add_decayed_weights,
    scale_by_adam,
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The defaults are BERT's (Devlin et al. 2019, appendix A.2).

    Attributes:
      weight_decay: Decoupled from the gradient.
      adam_b1: Decay of the first moment.
      adam_b2: Decay of the second moment.
      adam_eps: Added to the root of the second moment.
    """

    weight_decay: NonNegativeFloat = 0.01
    adam_b1: ShareBelowOne = 0.9
    adam_b2: ShareBelowOne = 0.999
    adam_eps: Epsilon = 1e-6

    relations = (DECAY_BELOW_ONE,)
    has_mup_rule = True

    def transforms(
        self, mup_rule: optax.GradientTransformation = UNSCALED
    ) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction.

        Args:
          mup_rule: Scales the direction by the width of the model, but not the weight decay.
        """
        return (
            scale_by_adam(self.adam_b1, self.adam_b2, self.adam_eps),
            mup_rule,
            add_decayed_weights(self.weight_decay),
        )
