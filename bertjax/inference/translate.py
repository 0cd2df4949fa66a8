"""Translate texts with a trained encoder-decoder by greedy or beam search."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import pretrained
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.decoding import beam, search
from bertjax.errors import UserError
from bertjax.inference.language_model import choose_precision
from bertjax.interfaces import Params, Tokenizer
from bertjax.layers.stack import split_layers, stack_layers

OBJECTIVE = "seq2seq"

NUM_BEAMS, LENGTH_PENALTY = 4, 0.6
"""Beam search of the Transformer (Vaswani et al. 2017, section 6.1)."""

MAX_EXTRA_TOKENS = 50
"""Maximum length of a target minus that of its source (Vaswani et al. 2017, section 6.1)."""

_BUCKET = 16
"""Sources are padded to a multiple of this, so that few lengths are compiled."""


@dataclasses.dataclass(frozen=True)
class Translator:
    """Encoder-decoder for inference.

    Attributes:
      model: The encoder-decoder.
      params: Its parameters.
      tokenizer: Tokenizer of the run.
      num_beams: Width of beam search; 1 for greedy search.
      length_penalty: Exponent alpha of `beam.shifted_power`.
    """

    model: Any
    params: Params
    tokenizer: Tokenizer
    num_beams: int
    length_penalty: float

    def translate(self, sources: Sequence[str], batch_size: int) -> list[str]:
        """Translates sources, in order.

        Args:
          sources: Texts.
          batch_size: Number of sources per batch.
        """
        ids = self.tokenizer.encode_batch([*sources])
        # Batched by length, to minimise padding.
        order = np.argsort([len(row) for row in ids], kind="stable")
        targets = {}
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            for index, row in zip(indices, self._decode(ids, indices, batch_size), strict=False):
                max_length = len(ids[index]) + 1 + MAX_EXTRA_TOKENS  # with [SEP]
                targets[int(index)] = self._to_text(row[:max_length].tolist())
        return [targets[index] for index in range(len(sources))]

    def _decode(self, ids: list[list[int]], indices: np.ndarray, batch_size: int) -> np.ndarray:
        """Generates the targets of a batch, which is filled with copies of its last source."""
        rows = [ids[index] for index in indices]
        rows += rows[-1:] * (batch_size - len(rows))
        template = SequenceTemplate(None, self.tokenizer.sep_id, self.tokenizer.pad_id)
        sizes = np.array([len(row) for row in rows])
        length = -(-(sizes.max() + template.num_special_tokens(1)) // _BUCKET) * _BUCKET
        frame, mask = template.frame_rows([sizes], int(length))
        frame.write(0, rows)
        input_ids = frame.ids.reshape(mask.shape)
        return np.asarray(self._search(self.params, jnp.asarray(input_ids), jnp.asarray(mask)))

    @functools.cached_property
    def _search(self):
        return jax.jit(self._generate)

    def _generate(self, params: Params, input_ids: jax.Array, mask: jax.Array) -> jax.Array:
        max_new_tokens = input_ids.shape[1] + MAX_EXTRA_TOKENS
        batch = {"input_ids": input_ids, "attention_mask": mask}
        state = self._apply(params, batch, max_new_tokens, method="begin")

        def step(state, tokens):
            return self._apply(params, state, tokens, method="step")

        start = jnp.full((len(input_ids), 1), self.tokenizer.pad_id, jnp.int32)
        decoder = search.Decoder(step)
        limits = {"max_new_tokens": max_new_tokens, "end_id": self.tokenizer.sep_id}
        if self.num_beams == 1:
            return search.complete(decoder, state, start, **limits)
        penalty = beam.shifted_power(self.length_penalty)
        options = {"width": self.num_beams, "penalty": penalty}
        return beam.search(decoder, state, start, **options, **limits)[0]

    def _apply(self, params: Params, *arguments: Any, method: str) -> Any:
        return self.model.apply({"params": stack_layers(params)}, *arguments, method=method)

    def _to_text(self, row: list[int]) -> str:
        special = {*self.tokenizer.special_ids, -1}
        return self.tokenizer.decode([token for token in row if token not in special])


def is_encoder_decoder(name: str | pretrained.Pretrained) -> bool:
    """Returns whether a run was trained to generate targets from sources."""
    return OBJECTIVE in pretrained.load(name).source.config.get("objectives", {})


def load(
    name: str | pretrained.Pretrained,
    *,
    num_beams: int = NUM_BEAMS,
    length_penalty: float = LENGTH_PENALTY,
    precision: str = "",
) -> Translator:
    """Loads an encoder-decoder from a run.

    Args:
      name: RUN, RUN@STEP or RUN@best; see `pretrained.load`.
      num_beams: Width of beam search; 1 for greedy search.
      length_penalty: Exponent alpha of `beam.shifted_power`.
      precision: As `config.model.precision`; empty for that of the run; see `choose_precision`.

    Raises:
      UserError: the run has no objective seq2seq, or the beam is wider than its vocabulary.
    """
    run = pretrained.load(name)
    if not is_encoder_decoder(run):
        raise UserError(
            f"{run.source.run} has no objective {OBJECTIVE}: expected a run of a config such as "
            "configs/transformer.py"
        )
    encoder = run.encoder(choose_precision(precision or run.config.model.precision))
    beam.check_width(num_beams, encoder.vocab_size)
    params = split_layers(run.load_params("encoder")["encoder"])
    return Translator(encoder, params, run.tokenizer, num_beams, length_penalty)


def count_exact_matches(
    outputs: Sequence[str], references: Sequence[str], tokenizer: Tokenizer
) -> int:
    """Counts outputs that equal their reference, after it is encoded and decoded."""
    decoded = [tokenizer.decode(ids) for ids in tokenizer.encode_batch([*references])]
    return sum(output == reference for output, reference in zip(outputs, decoded, strict=True))
