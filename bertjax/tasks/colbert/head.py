"""ColBERT: a vector for each token, and the loss of MaxSim scores with in-batch negatives."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax import pretrainer
from bertjax.constraints import AnyText, PositiveFloat, PositiveInt, Weight
from bertjax.interfaces import Batch
from bertjax.layers import contrastive, text_embeddings
from bertjax.layers.dense import Dense
from bertjax.layers.width_scaling import output_stddev
from bertjax.pretrainer import Encoded, Encoder, Sum
from bertjax.tasks.colbert.encoding import DOCUMENT, QUERY


class Task(pretrainer.Task, kw_only=True):
    """Late interaction (Khattab and Zaharia 2020, section 3.3).

    The G texts of an example are consecutive sequences of the batch: the query, its positive, and
    any number of hard negatives. Labels are the number of the text, equal for equal texts. The loss
    is the cross entropy of the positive among the documents of the batch (Santhanam et al. 2022,
    section 3.2); in the first paper it is that of the positive and one negative.

    Attributes:
      embedding_dim: Width of the vector of a token.
      query_length: Tokens of a query, padded with [MASK].
      temperature: Divides the scores.
      weight: Weight in the total loss.
      columns: Columns of query and document; written by the run.
      texts_per_example: Texts of a training example, G; written by the run.
    """

    embedding_dim: PositiveInt = 128
    query_length: PositiveInt = 32
    temperature: PositiveFloat = 1.0
    weight: Weight = 1.0
    columns: tuple[AnyText, ...] = ()
    texts_per_example: PositiveInt = 2

    metrics = (("accuracy", "max"),)
    fields_from_data = ("columns", "texts_per_example")
    compares_examples = True

    def loss(
        self, encoder: Encoder, encoded: Encoded, batch: Batch, *, train: bool
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Sums the cross entropy over the queries, in nats."""
        return self.loss_of_embeddings(self.predict(encoder, encoded, batch), batch)

    def loss_of_embeddings(
        self, embeddings: Float[Array, "B L E"], batch: Batch
    ) -> tuple[Array, Array, dict[str, Sum]]:
        """Returns `loss` from the vectors of all tokens of the batch."""
        weights = batch.get("example_weight", jnp.ones(len(batch["labels"])))
        rows = [embeddings, batch["token_kinds"], batch["labels"], weights]
        group = self.texts_per_example
        if self.is_initializing():  # with a batch of one sequence
            rows = [jnp.repeat(values, group, axis=0) for values in rows]
        vectors, kinds, ids, weights = (x.reshape(-1, group, *x.shape[1:]) for x in rows)
        length = min(self.query_length, vectors.shape[2])
        # Positives first, so that the label of row i is i.
        documents, document_kinds = (
            x[:, 1:].swapaxes(0, 1).reshape(-1, *x.shape[2:]) for x in (vectors, kinds)
        )
        scores_AC = text_embeddings.maxsim(
            vectors[:, 0, :length],
            kinds[:, 0, :length] == QUERY,
            documents,
            document_kinds == DOCUMENT,
        )
        weights_A = weights[:, 0]
        excluded_AC = contrastive.excluded_candidates(ids, weights_A)
        loss, hits = contrastive.softmax_of_rows(
            scores_AC / self.temperature, excluded_AC, weights_A
        )
        weight_sum = weights_A.sum()
        return loss, weight_sum, {"accuracy": (hits, weight_sum)}

    @nn.compact
    def predict(self, encoder: Encoder, encoded: Encoded, batch: Batch) -> Float[Array, "B L E"]:
        """Returns the unit vector of every token, in float32."""
        projection = Dense(
            (self.embedding_dim,),
            axes=("embed", None),
            use_bias=False,
            initializer_range=output_stddev(encoder),
            name="projection",
        )
        return text_embeddings.unit_vectors(projection(encoded.sequence).astype(jnp.float32))
