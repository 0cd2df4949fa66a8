"""Generate targets of sources with a trained encoder-decoder and beam search."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import pretrained
from bertjax.decoding import beam, search
from bertjax.errors import UserError
from bertjax.interfaces import Params, Tokenizer

LONGER = 50
"""A target has at most so many tokens more than its source (Vaswani et al. 2017, section 6.1)."""

_PADDED = 16
"""Sources are padded to multiples of this: every length is compiled once."""


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained model, ready to speak.

    Attributes:
      model: The encoder-decoder.
      params: Its parameters.
      tokenizer: Of its run.
      beams: Candidates at a time; 1 takes the most likely token each time.
      length_penalty: See `beam.shifted_power`.
    """

    model: Any
    params: Params
    tokenizer: Tokenizer
    beams: int
    length_penalty: float

    def translate(self, sources: Sequence[str], batch_size: int) -> list[str]:
        """The most likely target of every source, in their order."""
        ids = [[*ids, self.tokenizer.sep_id] for ids in self.tokenizer.encode_batch([*sources])]
        # Those of one length are together, so that little is padding.
        order = np.argsort([len(row) for row in ids], kind="stable")
        found = {}
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            for number, row in zip(numbers, self._decode(ids, numbers, batch_size), strict=False):
                found[int(number)] = self._text(row[: len(ids[number]) + LONGER].tolist())
        return [found[number] for number in range(len(sources))]

    def _decode(self, ids: list[list[int]], numbers: np.ndarray, batch_size: int) -> np.ndarray:
        """Tokens of the targets of some sources; the last of these fills a short batch."""
        rows = [ids[number] for number in numbers]
        rows += rows[-1:] * (batch_size - len(rows))
        length = -(-max(map(len, rows)) // _PADDED) * _PADDED
        input_ids = np.full((batch_size, length), self.tokenizer.pad_id, np.int32)
        for row, tokens in zip(input_ids, rows, strict=True):
            row[: len(tokens)] = tokens
        there = np.arange(length) < np.array([len(row) for row in rows])[:, None]
        return np.asarray(self._search(self.params, jnp.asarray(input_ids), jnp.asarray(there)))

    @functools.cached_property
    def _search(self):
        return jax.jit(self._searched)

    def _searched(self, params: Params, input_ids: jax.Array, there: jax.Array) -> jax.Array:
        variables = {"params": params}
        most = input_ids.shape[1] + LONGER
        batch = {"input_ids": input_ids, "attention_mask": there}
        said = self.model.apply(variables, batch, most, method="begin")

        def step(said, tokens):
            return self.model.apply(variables, said, tokens, method="step")

        start = jnp.full((len(input_ids), 1), self.tokenizer.pad_id, jnp.int32)
        decoder = search.Decoder(step)
        limits = {"max_new_tokens": most, "end_id": self.tokenizer.sep_id}
        if self.beams == 1:
            return search.complete(decoder, said, start, **limits)
        penalty = beam.shifted_power(self.length_penalty)
        found = beam.search(decoder, said, start, width=self.beams, penalty=penalty, **limits)
        return found[0]

    def _text(self, row: list[int]) -> str:
        special = {*self.tokenizer.special_ids, -1}
        return self.tokenizer.decode([token for token in row if token not in special])


def load(init: str, *, beams: int, length_penalty: float) -> Translator:
    """Reads a run that learned from sources and targets.

    Raises:
      UserError: it is none, or the beam is wider than its vocabulary.
    """
    run = pretrained.load(init)
    if "seq2seq" not in run.source.config.get("objectives", {}):
        raise UserError(
            f"{run.source.run} has no objective seq2seq: expected a run of a config such as "
            "configs/transformer.py"
        )
    beam.check_width(beams, run.config.model.vocab_size)
    params = jax.tree.map(jnp.asarray, run.params("encoder")["encoder"])
    return Translator(run.encoder(), params, run.tokenizer, beams, length_penalty)


def exact(said: Sequence[str], wanted: Sequence[str], tokenizer: Tokenizer) -> int:
    """How many targets are what was expected, in the spelling that the tokenizer gives both."""
    spelled = [tokenizer.decode(ids) for ids in tokenizer.encode_batch([*wanted])]
    return sum(one == other for one, other in zip(said, spelled, strict=True))
