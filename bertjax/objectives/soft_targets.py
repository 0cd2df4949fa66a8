"""Soft targets (Hinton et al. 2015, section 2): cross-entropy with a teacher's distribution.

With the masked language model's scores this is DistilBERT's distillation (Sanh et al. 2019, section
2), with a task's the prediction layer of TinyBERT's (Jiao et al. 2020, section 3.1).
"""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax import pretrainer
from bertjax.constraints import Name, PositiveFloat, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch, Params
from bertjax.layers import losses
from bertjax.layers.layer_choice import Frozen, Teacher
from bertjax.pretrainer import (
    DistillableObjective,
    Encoded,
    Encoder,
    Pretrainer,
    Sum,
    SummaryMetric,
)


class Objective(pretrainer.Objective):
    """Cross entropy between the logits of another objective of the run and the teacher's.

    Attributes:
      teacher: Makes the teacher, which has the objective `of` too; in a config, RUN, RUN@STEP or
        RUN@best.
      of: The objective or task whose logits are compared; it precedes this one in the config.
      weight: Share in the total loss; 5 in DistilBERT's published code, next to 2 for `mlm`.
      temperature: Softmax temperature of both distributions; 2 for DistilBERT, 1 for TinyBERT. A
        single score, as of a regression, is compared by its squared error instead.
      init_from_teacher: Whether the student is initialised from the teacher: embeddings, the head
        of `of`, and layers at even distances from the first to the last.
    """

    teacher: Teacher
    of: Name = "mlm"
    weight: Weight = 5.0
    temperature: PositiveFloat = 2.0
    init_from_teacher: bool = True

    metrics = (("agreement", "max"),)  # of classes; a regression has none
    summary = (SummaryMetric("agreement", "teacher agreement", "%"),)

    @nn.compact
    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Adds the teacher's hidden states and logits to the batch."""
        self._student()

        def forward(model: Pretrainer, batch: Batch) -> tuple[Array, Array]:
            encoded = model.encoder(batch, train=False)
            scored = getattr(model, self.of)
            return encoded.sequence, scored.scores(model.encoder, encoded, batch, train=False)[0]

        sequence, scores = Frozen(self.teacher, name="teacher")(forward, batch)
        return {**batch, "teacher_sequence": sequence, "teacher_scores": scores}

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Divergence from the teacher's distribution, and how often both predict the same."""
        logits, weights = self._student().scores(encoder, encoded, batch, train=train)
        teacher_logits, weight_sum = batch["teacher_scores"], weights.sum()
        if teacher_logits.shape[-1] == 1:
            error = (logits - teacher_logits)[..., 0]
            return jnp.sum(weights * jnp.square(error)), weight_sum, {}
        agreed = losses.count_correct(logits, teacher_logits.argmax(axis=-1), weights)
        loss_sum = losses.divergence(logits, teacher_logits, weights, self.temperature)
        return loss_sum, weight_sum, {"agreement": (agreed, weight_sum)}

    @nn.nowrap
    def init_params(self, params: Params, frozen: Params) -> Params:
        """Initialises the student from the teacher's layers (Sanh et al. 2019, section 3)."""
        if not self.init_from_teacher:
            return params
        teacher = frozen["teacher"]["params"]
        encoder = {
            name: _select_layers(part, teacher["encoder"][name])
            if name == "layers"
            else _require_same_shapes(part, teacher["encoder"][name], f"encoder/{name}")
            for name, part in params["encoder"].items()
        }
        head = _require_same_shapes(params[self.of], teacher[self.of], self.of)
        return {**params, "encoder": encoder, self.of: head}

    def _student(self) -> DistillableObjective:
        """The objective of this run that `of` names."""
        names = self.parent.objectives
        if self.of not in itertools.takewhile(lambda name: name != self.name, names):
            raise UserError(
                f"objective {self.name} requires {self.of!r} before it in config.objectives: got "
                f"{', '.join(names)}"
            )
        return getattr(self.parent, self.of)


def _select_layers(layers: Params, teacher: Params) -> Params:
    """Layers of a deeper stack at even distances, including the first and the last."""
    count, deep = (len(jax.tree.leaves(tree)[0]) for tree in (layers, teacher))
    chosen = np.round(np.linspace(0, deep - 1, count)).astype(int)
    return _require_same_shapes(
        layers, jax.tree.map(lambda leaf: leaf[chosen], teacher), "encoder/layers"
    )


def _require_same_shapes(own: Params, teacher: Params, where: str) -> Params:
    def shapes(tree):
        return jax.tree.map(jnp.shape, tree)

    if shapes(own) != shapes(teacher):
        raise UserError(
            f"cannot initialise the student from its teacher: shape mismatch at {where}; use a "
            "teacher of the same width, or set init_from_teacher to false"
        )
    return teacher
