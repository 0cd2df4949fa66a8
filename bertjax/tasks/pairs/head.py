"""Embedding of texts, trained on pairs: a pooled vector without parameters, and its losses."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import AnyText, OneOf, PositiveFloat, PositiveInt, Relation, Weight
from bertjax.interfaces import Batch
from bertjax.layers import contrastive
from bertjax.layers.text_embeddings import POOLINGS, pool
from bertjax.pretrainer import Encoded, Encoder, Sum

CONTRASTIVE, COSENT, COSINE = "contrastive", "cosent", "cosine"
MARGIN_MSE, KL = "margin_mse", "kl"
LOSS_TYPES = (CONTRASTIVE, COSENT, COSINE, MARGIN_MSE, KL)


class Task(pretrainer.Task, kw_only=True):
    """Embedding of texts (Sentence-BERT, Reimers and Gurevych 2019, section 3).

    The G texts of an example are consecutive sequences of the batch: the anchor, its positive, and
    hard negatives where the data has some. Labels are the number of the text, equal for equal
    texts, for the contrastive loss; the score of the pair for cosent and cosine; and for margin_mse
    and kl the teacher's score of each text for the anchor.

    Attributes:
      loss_type: contrastive (in-batch negatives); for scored pairs cosent or cosine; margin_mse or
        kl for scores of a teacher (`layers/contrastive.py`); "" for cosent if the data has scores,
        else contrastive.
      pooling: mean over the tokens of a sequence, special ones included; weighted, by position; or
        cls (`layers/text_embeddings.py`).
      temperature: Divides the cosines of contrastive, cosent and kl.
      symmetric: Whether contrastive is the mean of both directions.
      query_prompt: Put before every anchor, in training and wherever the run embeds queries.
      document_prompt: Likewise, before positives and negatives, and documents.
      matryoshka_dims: Widths, besides the full one, whose losses are added: the first numbers of a
        vector are then an embedding too (Kusupati et al. 2022, equation 1, weights of 1).
      weight: Weight in the total loss.
      columns: Columns of the texts of an example; written by the run.
      texts_per_example: Number of texts of a training example, G; written by the run.
    """

    loss_type: Annotated[str, OneOf(("", *LOSS_TYPES))] = ""
    pooling: Annotated[str, OneOf(POOLINGS)] = "mean"
    temperature: PositiveFloat = 0.05
    symmetric: bool = False
    query_prompt: AnyText = ""
    document_prompt: AnyText = ""
    matryoshka_dims: tuple[PositiveInt, ...] = ()
    weight: Weight = 1.0
    columns: tuple[AnyText, ...] = ()
    texts_per_example: PositiveInt = 2

    metrics = (("accuracy", "max"),)  # of contrastive
    fields_from_data = ("columns", "texts_per_example")
    embeds = True
    dot_product_losses = (MARGIN_MSE,)
    compares_examples = True
    relations = (
        Relation(
            ("symmetric", "loss_type"),
            lambda symmetric, loss_type: not symmetric or loss_type in ("", CONTRASTIVE),
            "symmetric=False, since only contrastive has two directions",
        ),
    )
    model_relations = (
        Relation(
            ("matryoshka_dims", "hidden_size"),
            lambda dims, width: all(each < width for each in dims),
            "matryoshka_dims below hidden_size, a width that is trained in any case",
        ),
    )

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the loss over the examples, and over the widths of the embeddings."""
        return self.loss_of_embeddings(self.predict(encoder, encoded, batch), batch)

    def loss_of_embeddings(
        self, embeddings: Float[Array, "B D"], batch: Batch
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Returns `loss` from the embeddings of all sequences of the batch."""
        rows = {"vectors": embeddings, "labels": batch["labels"]}
        rows["weights"] = batch.get("example_weight", jnp.ones(len(batch["labels"])))
        group, width = self.texts_per_example, rows["vectors"].shape[-1]
        if self.is_initializing():  # with a batch of one sequence
            rows = {name: jnp.repeat(values, group, axis=0) for name, values in rows.items()}
        vectors_BGD = rows["vectors"].reshape(-1, group, width)
        labels_BG = rows["labels"].reshape(-1, group)
        weights_B = rows["weights"].reshape(-1, group)[:, 0]
        loss_sum, metrics = 0.0, {}
        for size in (*self.matryoshka_dims, width):
            part = vectors_BGD[..., :size]
            if self.loss_type == MARGIN_MSE:
                own, weight_sum = contrastive.margin_mse(part, labels_BG[:, 1:], weights_B)
            elif self.loss_type == KL:
                own, weight_sum = contrastive.candidate_kl(
                    part, labels_BG[:, 1:], weights_B, temperature=self.temperature
                )
            elif self.loss_type == COSINE:
                own, weight_sum = contrastive.cosine_regression(part, labels_BG[:, 0], weights_B)
            elif self.loss_type == COSENT:
                own, weight_sum = contrastive.cosent(
                    part, labels_BG[:, 0], weights_B, temperature=self.temperature
                )
            else:
                (own, weight_sum), hits = contrastive.in_batch_negatives(
                    part,
                    labels_BG,
                    weights_B,
                    temperature=self.temperature,
                    symmetric=self.symmetric,
                )
                metrics = {"accuracy": (hits, weight_sum)}  # at the end that of the full width
            loss_sum += own
        return loss_sum, weight_sum, metrics

    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B D"]:
        """Returns the embedding of every sequence, in float32."""
        return pool(
            encoded.sequence.astype(jnp.float32),
            batch["attention_mask"],
            self.pooling,
            cls_last=getattr(encoder, "cls_last", False),
        )
