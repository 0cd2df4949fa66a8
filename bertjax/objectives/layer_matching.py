"""TinyBERT's Transformer distillation (Jiao et al. 2020, section 3.1): layer-wise losses."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import PositiveInt, Weight
from bertjax.errors import UserError
from bertjax.interfaces import Batch
from bertjax.layers import masks
from bertjax.layers.dense import Dense
from bertjax.layers.layer_choice import Frozen, Teacher
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Pretrainer, Sum, SummaryMetric


class Objective(pretrainer.Objective):
    """Matches embeddings, hidden states and attention scores with those of chosen teacher layers.

    The student needs as many heads as the teacher, but not its width: learned linear maps, one for
    the embeddings and one for all hidden states, project it (equations 8 and 9).

    Attributes:
      teacher: Makes the teacher; in a config, RUN, RUN@STEP or RUN@best.
      weight: Share in the total loss.
      layer_map: The teacher's layer for each of the student's, counted from 1; () for the uniform
        mapping g(m) = m * N_teacher / N_student (section 4.1).
    """

    teacher: Teacher
    weight: Weight = 1.0
    layer_map: tuple[PositiveInt, ...] = ()

    metrics = (("embedding_error", "min"), ("hidden_error", "min"), ("attention_error", "min"))
    summary = (
        SummaryMetric("embedding_error", "embedding MSE"),
        SummaryMetric("hidden_error", "hidden state MSE"),
        SummaryMetric("attention_error", "attention MSE"),
    )

    @nn.compact
    def prepare(self, encoder: Encoder, batch: Batch, *, train: bool) -> Batch:
        """Adds hidden states and attention scores of the teacher to the batch."""
        _check_has_scores("student", encoder)

        def forward(model: Pretrainer, batch: Batch) -> tuple[Array, Array]:
            teacher = model.encoder
            _check_has_scores("teacher", teacher)
            states = teacher(batch, train=False).hidden_states
            chosen = self._layers(encoder.num_hidden_layers, teacher.num_hidden_layers)
            scores = [teacher.attention_scores(states[m - 1], m - 1, batch) for m in chosen]
            return jnp.stack([states[0], *(states[m] for m in chosen)]), jnp.stack(scores)

        states, scores = Frozen(self.teacher, name="teacher")(forward, batch)
        return {**batch, "teacher_states": states, "teacher_attention": scores}

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Mean squared errors of each token, summed over layers."""
        states, teacher = encoded.hidden_states, batch["teacher_states"]
        if states is None:
            raise UserError(
                "objective layer_matching requires hidden states; set "
                "config.model.output_hidden_states to true"
            )
        example_weight = batch.get("example_weight", jnp.ones(len(states[0])))
        tokens = masks.padding_mask(batch["attention_mask"])
        weights = tokens * example_weight[:, None]
        embedded, *hidden = self._project(encoder, states, teacher.shape[-1])
        errors = {
            "embedding": _error(embedded, teacher[0]),
            "hidden": sum(map(_error, hidden, teacher[1:])),
            "attention": self._attention_error(encoder, states, batch),
        }
        sums = {name: jnp.sum(weights * error) for name, error in errors.items()}
        weight_sum = weights.sum()
        metrics = {f"{name}_error": (value, weight_sum) for name, value in sums.items()}
        return sum(sums.values()), weight_sum, metrics

    @nn.compact
    def _project(
        self, encoder: Encoder, states: tuple[Array, ...], width: int
    ) -> list[Float[Array, "B L D"]]:
        def dense(name):
            return Dense(
                (width,),
                ("embed", None),
                use_bias=False,
                initializer_range=output_stddev(encoder),
                name=name,
            )

        embedding, hidden = dense("embedding_projection"), dense("hidden_projection")
        return [embedding(states[0]), *map(hidden, states[1:])]

    def _attention_error(
        self, encoder: Encoder, states: tuple[Array, ...], batch: Batch
    ) -> Float[Array, "B L"]:
        """Mean over heads and unmasked keys for each query, summed over layers."""
        teacher = batch["teacher_attention"]
        if teacher.shape[2] != encoder.num_attention_heads:
            raise UserError(
                f"objective layer_matching: got a student of "
                f"num_attention_heads={encoder.num_attention_heads}, expected the teacher's "
                f"{teacher.shape[2]}; make them equal"
            )
        mask = masks.from_batch(batch).array()
        keys = jnp.broadcast_to(mask, teacher[0, :, :1].shape).sum((1, 3))
        total = 0.0
        for layer, target in enumerate(teacher):
            own = encoder.attention_scores(states[layer], layer, batch)
            squares = jnp.square(own - target).sum((1, 3))
            total += squares / jnp.maximum(keys * target.shape[1], 1)
        return total

    def _layers(self, student: int, teacher: int) -> tuple[int, ...]:
        """The teacher's layer, counted from 1, for each of the student's."""
        chosen = self.layer_map
        if not chosen and teacher % student == 0:
            chosen = tuple(range(teacher // student, teacher + 1, teacher // student))
        if len(chosen) != student or not all(1 <= layer <= teacher for layer in chosen):
            raise UserError(
                f"objective layer_matching: got layer_map={self.layer_map}, expected {student} "
                f"layers of the teacher, one for each of the student's, from 1 to {teacher}"
            )
        return chosen


def _check_has_scores(role: str, encoder: Encoder) -> None:
    if not hasattr(encoder, "attention_scores"):
        raise UserError(
            f"objective layer_matching: the model of the {role} does not return attention scores; "
            "use one whose config.model.name is bert"
        )


def _error(own: Float[Array, "B L D"], target: Float[Array, "B L D"]) -> Float[Array, "B L"]:
    return jnp.square(own.astype(jnp.float32) - target.astype(jnp.float32)).mean(axis=-1)
