"""Predict masked tokens with a masked language model.

guesses   in the held-out text of its own run, at the end of pretraining
Filler    in texts that the user writes, with [MASK] in them
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import build, pretrained
from bertjax.errors import UserError
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.pretrainer import Pretrainer
from bertjax.runs.pretrain_job import Job
from bertjax.train.step import evaluation_keys

MASK = "[MASK]"
"""How the user writes a hidden token, whatever the tokenizer calls it."""

_CONTEXT = 12
_BUCKET = 16
"""Texts are padded to a multiple of this, so that few lengths have to be compiled."""

Candidates = tuple[tuple[str, float], ...]
"""(token, probability), the most probable first."""


@dataclasses.dataclass(frozen=True)
class Guess:
    """One hidden token.

    Attributes:
      before: Text on its left.
      after: Text on its right.
      truth: The token that was hidden.
      candidates: What the model believes it to be.
    """

    before: str
    after: str
    truth: str
    candidates: Candidates


def held_out_guesses(job: Job, params: Params, count: int = 3) -> list[dict[str, Any]]:
    """Predictions for masked tokens in examples from all parts of the held-out text of a run."""
    if job.held_out is None or "mlm" not in job.config.objectives:
        return []
    examples = job.examples(job.held_out, job.phases[-1])
    numbers = np.linspace(0, examples.num_examples - 1, count).astype(np.int64)
    batch = examples.build(0, numbers)
    found = guesses(job.trainer.pretrainer, params, batch, job.tokenizer, seed=job.config.seed)
    return [dataclasses.asdict(guess) for guess in found]


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
        batch = {**batch, "mlm_positions": batch["mlm_positions"][:, :1]}
        values, ids = _believed(module, batch, top)
        return batch["mlm_positions"][:, 0], batch["mlm_labels"][:, 0], values[:, 0], ids[:, 0]

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


@dataclasses.dataclass(frozen=True)
class Filler:
    """A trained model that fills masked positions of texts.

    Attributes:
      pretrainer: The model with its objective.
      params: On the device.
      tokenizer: Of the run.
      max_length: Tokens of the longest text that it reads, special ones included.
      cls_last: Whether [CLS] ends a text.
      top: How many candidates are given.
    """

    pretrainer: Pretrainer
    params: Params
    tokenizer: Tokenizer
    max_length: float
    cls_last: bool
    top: int

    def fill(self, texts: Sequence[str]) -> list[list[Candidates]]:
        """For each text what the model puts in each of its masked positions, in order.

        Raises:
          UserError: a text has no hidden place, or is too long.
        """
        rows = [self._encode(number, text) for number, text in enumerate(texts, 1)]
        length = -(-max(map(len, rows)) // _BUCKET) * _BUCKET
        length = int(min(length, self.max_length))
        input_ids = np.full((len(rows), length), self.tokenizer.pad_id, np.int32)
        for row, ids in zip(input_ids, rows, strict=True):
            row[: len(ids)] = ids
        there = np.arange(length) < np.array([len(ids) for ids in rows])[:, None]
        hidden = [np.flatnonzero(row == self.tokenizer.mask_id) for row in input_ids]
        places = np.zeros((len(rows), max(map(len, hidden))), np.int32)
        for row, found in zip(places, hidden, strict=True):
            row[: len(found)] = found
        batch = {"input_ids": input_ids, "attention_mask": there, "mlm_positions": places}
        values, ids = jax.device_get(self._run(self.params, batch))
        return [
            [self._named(values[row, n], ids[row, n]) for n in range(len(found))]
            for row, found in enumerate(hidden)
        ]

    @functools.cached_property
    def _run(self):
        def run(params: Params, batch: Batch):
            def method(module: Pretrainer, batch: Batch):
                return _believed(module, batch, self.top)

            return self.pretrainer.apply({"params": params}, batch, method=method)

        return jax.jit(run)

    def _encode(self, number: int, text: str) -> list[int]:
        first, *rest = text.split(MASK)
        if not rest:
            raise UserError(f"text {number} ({text!r}) hides nothing: write {MASK} for a token")
        tokenizer = self.tokenizer
        # A mask stands for a token with the space before it.
        parts = [first.rstrip(), *(part if part.strip() else "" for part in rest)]
        parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        ids, *others = tokenizer.encode_batch(parts)
        for other in others:
            ids = [*ids, tokenizer.mask_id, *other]
        cls = [] if tokenizer.cls_id is None else [tokenizer.cls_id]
        sep = [] if tokenizer.sep_id is None else [tokenizer.sep_id]
        ids = [*ids, *sep, *cls] if self.cls_last else [*cls, *ids, *sep]
        if len(ids) > self.max_length:
            raise UserError(
                f"text {number} has {len(ids):,} tokens, the model reads {self.max_length:,}: "
                "shorten it"
            )
        return ids

    def _named(self, values: np.ndarray, ids: np.ndarray) -> Candidates:
        tokens = (_token(self.tokenizer, identity) for identity in ids)
        return tuple(zip(tokens, values.tolist(), strict=True))


def load(init: str, top: int, precision: str = "") -> Filler:
    """Reads a run that learned to fill masked positions.

    Args:
      init: See `transfer.find`.
      top: How many candidates are given.
      precision: As `config.model.precision`; empty: the run's.

    Raises:
      UserError: it is none, or more candidates are asked for than there are tokens.
    """
    run = pretrained.load(init)
    config, tokenizer = run.config, run.tokenizer
    if "mlm" not in run.source.config.get("objectives", {}):
        raise UserError(
            f"{run.source.run} has no objective mlm: expected a run of a config such as "
            "configs/bert.py, or an imported masked language model"
        )
    if not 1 <= top <= config.model.vocab_size:
        raise UserError(f"--top {top}: expected 1 to {config.model.vocab_size:,}, the vocabulary")
    return Filler(
        Pretrainer(run.encoder(precision), {"mlm": run.objective("mlm", tokenizer)}),
        jax.tree.map(jnp.asarray, run.params("encoder", "mlm")),
        tokenizer,
        build.positions(config.model),
        build.cls_last(config.model),
        top,
    )


def _believed(
    module: Pretrainer, batch: Batch, top: int
) -> tuple[Float[Array, "B P K"], Int[Array, "B P K"]]:
    """Probabilities of the most likely tokens at `mlm_positions`, and which these are."""
    encoded = module.encoder(batch, train=False)
    logits = module.mlm.logits(module.encoder, encoded.sequence, batch["mlm_positions"])
    return jax.lax.top_k(jax.nn.softmax(logits), top)


def _token(tokenizer: Tokenizer, number: int) -> str:
    """A token as it reads in a text, where that is anything to be seen."""
    return tokenizer.decode([int(number)]).strip() or tokenizer.pieces([int(number)])[0]


def _guess(tokenizer, row, place, label, probabilities, candidates) -> Guess:
    special = set(tokenizer.special_ids)

    def text(ids):
        return tokenizer.decode([int(i) for i in ids if i not in special]).strip()

    return Guess(
        before=text(row[max(place - _CONTEXT, 0) : place]),
        after=text(row[place + 1 : place + 1 + _CONTEXT]),
        truth=_token(tokenizer, label),
        candidates=tuple(
            (_token(tokenizer, candidate), float(probability))
            for candidate, probability in zip(candidates, probabilities, strict=True)
        ),
    )
