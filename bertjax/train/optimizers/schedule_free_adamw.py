"""Schedule-free AdamW (Defazio et al. 2024): an average in place of a decaying learning rate.

The run may end at any step: the averaged weights, which evaluation and export use, are as good as
those of a schedule that ends there. The gradient is computed between the average and the weights
of the optimizer (`train/averaging.py`), in place of momentum.
"""

import dataclasses
import operator

import optax

from bertjax.constraints import Epsilon, NonNegativeFloat, OpenShare, Relation, ShareBelowOne
from bertjax.train.averaging import Averaging, ScheduleFree
from bertjax.train.optimizer import DECAY_BELOW_ONE, UNSCALED, add_decayed_weights


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The learning rate is one to ten times AdamW's, constant after the warmup.

    Attributes:
      weight_decay: Decoupled; of the weights at which the gradient is computed, as in the published
        code.
      adam_b1: Share of the average in those weights.
      adam_b2: Decay of the second moment.
      adam_eps: Added to the root of the second moment.
    """

    weight_decay: NonNegativeFloat = 0.01
    adam_b1: OpenShare = 0.9
    adam_b2: ShareBelowOne = 0.999
    adam_eps: Epsilon = 1e-8

    relations = (
        DECAY_BELOW_ONE,
        Relation(
            ("schedule",),
            lambda schedule: schedule == "constant",
            "'constant' with schedule_free_adamw, whose average replaces the decay",
            "set --config.optimizer.schedule=constant",
        ),
        *(
            Relation(
                (field,),
                operator.not_,
                "0 with schedule_free_adamw, which averages the weights itself",
                "leave it out",
            )
            for field in ("ema_decay", "lawa_every")
        ),
    )
    has_mup_rule = True

    def transforms(
        self, mup_rule: optax.GradientTransformation = UNSCALED
    ) -> tuple[optax.GradientTransformation, ...]:
        """The steps of the chain from clipped gradient to direction.

        Args:
          mup_rule: Scales the direction by the width of the model, but not the weight decay.
        """
        adam = optax.scale_by_rms(
            self.adam_b2, self.adam_eps, eps_in_sqrt=False, bias_correction=True
        )
        return (adam, mup_rule, add_decayed_weights(self.weight_decay))

    def averaging(self) -> Averaging:
        """The average that the weights of evaluation are."""
        return ScheduleFree(self.adam_b1)
