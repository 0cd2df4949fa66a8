"""Predict masked tokens with a masked language model.

predict_held_out   in held-out text of a pretraining run, for its report
MaskFiller         in texts of the user that contain [MASK]
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import build, catalog, pretrained
from bertjax.data.sequence_template import SequenceTemplate
from bertjax.errors import UserError
from bertjax.interfaces import Batch, Params, Tokenizer
from bertjax.pretrainer import Pretrainer
from bertjax.runs.pretrain_job import Job
from bertjax.train.step import evaluation_keys

MASK = "[MASK]"
"""The mask token in texts of the user, independent of the tokenizer's spelling."""

_TASK = "fill-mask"
"""`pipeline_tag` of the objectives that predict masked tokens."""

_CONTEXT = 12
"""Tokens on each side of a masked token in a report."""

_BUCKET = 16
"""Texts are padded to a multiple of this, so that few lengths are compiled."""


class Candidate(NamedTuple):
    """A prediction for a masked token.

    Attributes:
      token: The token as text.
      probability: Its probability, over the whole vocabulary.
    """

    token: str
    probability: float


Candidates = tuple[Candidate, ...]
"""The most probable first."""


@dataclasses.dataclass(frozen=True)
class MaskPrediction:
    """Prediction of one masked token.

    Attributes:
      before: Text on its left.
      after: Text on its right.
      truth: The original token.
      candidates: The most likely tokens.
    """

    before: str
    after: str
    truth: str
    candidates: Candidates


def predict_held_out(job: Job, params: Params, count: int = 3) -> list[dict[str, Any]]:
    """Predicts masked tokens in examples spread over the held-out text of a run.

    Args:
      job: The run.
      params: Its parameters.
      count: Number of examples.

    Returns:
      Fields of a `MaskPrediction` for each example; none without held-out text or an MLM objective.
    """
    if job.held_out is None or find_head(job.config.objectives) is None:
        return []
    examples = job.examples(job.held_out, job.phases[-1])
    numbers = np.linspace(0, examples.num_examples - 1, count).astype(np.int64)
    batch = examples.build(0, numbers)
    predictions = predict_masked(
        job.trainer.pretrainer, params, batch, job.tokenizer, seed=job.config.seed
    )
    return [dataclasses.asdict(prediction) for prediction in predictions]


def predict_masked(
    pretrainer: Pretrainer,
    params: Params,
    batch: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    *,
    seed: int,
    top_k: int = 3,
) -> list[MaskPrediction]:
    """Predicts the first masked token of every example of a host batch.

    Args:
      pretrainer: The model, with its MLM objective.
      params: Its parameters.
      batch: Arrays [B ...] on the host.
      tokenizer: Tokenizer of the model.
      seed: Seed of the masks, which are those of evaluation with this seed.
      top_k: Number of candidates.
    """

    def predict(module: Pretrainer, batch: Mapping[str, Array]):
        batch = _head(module).prepare(module.encoder, batch, train=False)
        batch = {**batch, "mlm_positions": batch["mlm_positions"][:, :1]}
        values, ids = _top_candidates(module, batch, top_k)
        return batch["mlm_positions"][:, 0], batch["mlm_labels"][:, 0], values[:, 0], ids[:, 0]

    batch = {name: jnp.asarray(rows) for name, rows in batch.items()}
    keys = evaluation_keys(seed, batch["example_id"])
    run = jax.jit(lambda params, batch: pretrainer.apply({"params": params}, batch, method=predict))
    positions, labels, values, ids = jax.device_get(run(params, {**batch, "example_key": keys}))
    rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [
        _describe(tokenizer, np.asarray(row)[np.asarray(mask)], position, label, value, candidate)
        for (row, mask), position, label, value, candidate in zip(
            rows, positions, labels, values, ids, strict=True
        )
    ]


@dataclasses.dataclass(frozen=True)
class MaskFiller:
    """Masked language model that fills [MASK] in texts.

    Attributes:
      pretrainer: The model with its MLM objective.
      params: Parameters on the device.
      tokenizer: Tokenizer of the run.
      max_length: Maximum number of tokens of a text, including special tokens.
      cls_last: Whether [CLS] ends a sequence, as in XLNet.
      top_k: Number of candidates.
    """

    pretrainer: Pretrainer
    params: Params
    tokenizer: Tokenizer
    max_length: float
    cls_last: bool
    top_k: int

    def fill(self, texts: Sequence[str]) -> list[list[Candidates]]:
        """Predicts each [MASK] of each text.

        Args:
          texts: Texts with one or more [MASK].

        Returns:
          For each text, the candidates of each of its [MASK] in order.

        Raises:
          UserError: a text has no [MASK], or is too long.
        """
        rows = [self._encode(number, text) for number, text in enumerate(texts, 1)]
        if not rows:
            return []
        sizes = np.array([len(ids) for ids in rows])
        length = -(-(sizes.max() + self._template.num_special_tokens(1)) // _BUCKET) * _BUCKET
        frame, mask = self._template.frame_rows([sizes], int(min(length, self.max_length)))
        frame.write(0, rows)
        input_ids = frame.ids.reshape(mask.shape)
        masked = [np.flatnonzero(row == self.tokenizer.mask_id) for row in input_ids]
        positions = np.zeros((len(rows), max(map(len, masked))), np.int32)
        for row, found in zip(positions, masked, strict=True):
            row[: len(found)] = found
        batch = {"input_ids": input_ids, "attention_mask": mask, "mlm_positions": positions}
        values, ids = jax.device_get(self._run(self.params, batch))
        return [
            [self._to_candidates(values[row, n], ids[row, n]) for n in range(len(found))]
            for row, found in enumerate(masked)
        ]

    @property
    def _template(self) -> SequenceTemplate:
        return SequenceTemplate.from_tokenizer(self.tokenizer, cls_last=self.cls_last)

    @functools.cached_property
    def _run(self):
        def run(params: Params, batch: Batch):
            def method(module: Pretrainer, batch: Batch):
                return _top_candidates(module, batch, self.top_k)

            return self.pretrainer.apply({"params": params}, batch, method=method)

        return jax.jit(run)

    def _encode(self, number: int, text: str) -> list[int]:
        first, *rest = text.split(MASK)
        if not rest:
            raise UserError(
                f"text {number} has no masked token: got {text!r}, expected at least one {MASK}"
            )
        tokenizer = self.tokenizer
        # A mask replaces a token together with the space before it.
        parts = [first.rstrip(), *(part if part.strip() else "" for part in rest)]
        parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        ids, *others = tokenizer.encode_batch(parts)
        for other in others:
            ids = [*ids, tokenizer.mask_id, *other]
        length = len(ids) + self._template.num_special_tokens(1)
        if length > self.max_length:
            raise UserError(
                f"text {number} is too long: got {length:,} tokens, expected at most "
                f"{self.max_length:,}; shorten it"
            )
        return ids

    def _to_candidates(self, values: np.ndarray, ids: np.ndarray) -> Candidates:
        tokens = (_decode_token(self.tokenizer, identity) for identity in ids)
        return tuple(map(Candidate, tokens, values.tolist()))


def load(init: str | pretrained.Pretrained, top_k: int, precision: str = "") -> MaskFiller:
    """Loads a masked language model from a run.

    Args:
      init: RUN, RUN@STEP or RUN@best, or a loaded model; see `pretrained.load`.
      top_k: Number of candidates per [MASK].
      precision: As `config.model.precision`; empty for that of the run.

    Raises:
      UserError: the run has no MLM objective, or `top_k` is not an integer from 1 to the size of
        its vocabulary.
    """
    run = pretrained.load(init)
    config = run.config
    pretrainer, params = load_masked_lm(run, precision)
    vocab_size = build.model_values(config.model)["vocab_size"]
    if not isinstance(top_k, int | np.integer) or not 1 <= top_k <= vocab_size:
        raise UserError(
            f"top_k: got {top_k!r}, expected an integer from 1 to the vocabulary size "
            f"{vocab_size:,}"
        )
    return MaskFiller(
        pretrainer,
        params,
        run.tokenizer,
        build.positions(config.model),
        build.cls_last(config.model),
        top_k,
    )


def load_masked_lm(run: pretrained.Pretrained, precision: str) -> tuple[Pretrainer, Params]:
    """Loads an encoder with its masked language model head, and their parameters on the device.

    Raises:
      UserError: the run has no MLM objective.
    """
    head = find_head(run.source.config.get("objectives", {}))
    if head is None:
        raise UserError(
            f"{run.source.run} has no objective mlm: expected a run of a config such as "
            "configs/bert.py, or an imported masked language model"
        )
    objectives = {head: run.objective(head, run.tokenizer)}
    params = jax.tree.map(jnp.asarray, run.load_params("encoder", head))
    return Pretrainer(run.forward_encoder(precision), objectives), params


def find_head(objectives: Iterable[str]) -> str | None:
    """The objective that predicts masked tokens; None if there is none."""
    classes = {name: catalog.load("objectives", name).Objective for name in objectives}
    return next((name for name, found in classes.items() if found.pipeline_tag == _TASK), None)


def _head(module: Pretrainer) -> Any:
    return getattr(module, cast(str, find_head(module.objectives)))


def _top_candidates(
    module: Pretrainer, batch: Batch, top_k: int
) -> tuple[Float[Array, "B P K"], Int[Array, "B P K"]]:
    """Returns the probabilities and ids of the most likely tokens at `mlm_positions`."""
    return jax.lax.top_k(jax.nn.softmax(masked_logits(module, batch)), top_k)


def masked_logits(module: Pretrainer, batch: Batch) -> Float[Array, "B P V"]:
    """The scores of the vocabulary at `mlm_positions`, where the input has mask tokens."""
    encoded = module.encoder(batch, train=False)
    batch = {**batch, "mlm_weights": jnp.ones(batch["mlm_positions"].shape)}
    return _head(module).scores(module.encoder, encoded, batch, train=False)[0]


def _decode_token(tokenizer: Tokenizer, token: int) -> str:
    """Decodes a token to text, or to its piece if the text is white space."""
    return tokenizer.decode([int(token)]).strip() or tokenizer.ids_to_pieces([int(token)])[0]


def _describe(
    tokenizer: Tokenizer,
    row: np.ndarray,
    position: int,
    label: int,
    probabilities: np.ndarray,
    candidates: np.ndarray,
) -> MaskPrediction:
    special = set(tokenizer.special_ids)

    def text(ids):
        return tokenizer.decode([int(i) for i in ids if i not in special]).strip()

    return MaskPrediction(
        before=text(row[max(position - _CONTEXT, 0) : position]),
        after=text(row[position + 1 : position + 1 + _CONTEXT]),
        truth=_decode_token(tokenizer, label),
        candidates=tuple(
            Candidate(_decode_token(tokenizer, candidate), float(probability))
            for candidate, probability in zip(candidates, probabilities, strict=True)
        ),
    )
