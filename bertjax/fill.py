"""Showing what a masked language model believes: the tokens that it puts in hidden places."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertjax.interfaces import Params, Pretrainer, Tokenizer
from bertjax.train.step import evaluation_keys

_CONTEXT = 12


@dataclasses.dataclass(frozen=True)
class Guess:
    """One hidden token.

    Attributes:
      before: Text on its left.
      after: Text on its right.
      truth: The token that was hidden.
      candidates: (token, probability), the most probable first.
    """

    before: str
    after: str
    truth: str
    candidates: tuple[tuple[str, float], ...]


def guesses(
    pretrainer: Pretrainer,
    params: Params,
    batch: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    *,
    seed: int,
    top: int = 3,
) -> list[Guess]:
    """What the model puts in the first hidden place of every example of a host batch.

    The places are those of the evaluation with this seed.
    """

    def predict(module: Pretrainer, batch: Mapping[str, Array]):
        batch = module.mlm.prepare(module.encoder, batch, train=False)
        encoded = module.encoder(batch, train=False)
        positions = batch["mlm_positions"][:, :1]
        logits = module.mlm.logits(module.encoder, encoded.sequence, positions)
        values, ids = jax.lax.top_k(jax.nn.softmax(logits[:, 0]), top)
        return positions[:, 0], batch["mlm_labels"][:, 0], values, ids

    batch = {name: jnp.asarray(rows) for name, rows in batch.items()}
    keys = evaluation_keys(seed, batch["example_id"])
    found = jax.jit(
        lambda params, batch: pretrainer.apply({"params": params}, batch, method=predict)
    )
    places, labels, values, ids = jax.device_get(found(params, {**batch, "example_key": keys}))
    rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [
        _guess(tokenizer, np.asarray(row)[np.asarray(mask)], place, label, value, candidate)
        for (row, mask), place, label, value, candidate in zip(
            rows, places, labels, values, ids, strict=True
        )
    ]


def _guess(tokenizer, row, place, label, probabilities, candidates) -> Guess:
    special = set(tokenizer.special_ids)

    def text(ids):
        return tokenizer.decode([int(i) for i in ids if i not in special]).strip()

    def token(number):
        # As it reads in a text, where that is anything to be seen.
        return tokenizer.decode([int(number)]).strip() or tokenizer.pieces([int(number)])[0]

    return Guess(
        before=text(row[max(place - _CONTEXT, 0) : place]),
        after=text(row[place + 1 : place + 1 + _CONTEXT]),
        truth=token(label),
        candidates=tuple(
            (token(candidate), float(probability))
            for candidate, probability in zip(candidates, probabilities, strict=True)
        ),
    )
