"""Beam search: the most likely continuation, with `width` candidates per step.

Candidates and finished hypotheses are selected as in transformers' `generate` with its default
early stopping, so that equal scores give equal tokens. `search.py` defines the model interface.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.decoding.search import GREEDY, Cache, Decoder, TokenSampler
from bertjax.errors import UserError

_EXCLUDED = -1e9
"""Added to the score of candidates that must not be selected; finite, as in transformers."""

Penalty = Callable[[Int[Array, ""]], Float[Array, ""]]
"""Length penalty: from the length of a continuation to the divisor of its log probability."""


def power(alpha: float) -> Penalty:
    """Returns the penalty length ** alpha, as in transformers: 0 for the sum, 1 for the mean."""
    return lambda length: length.astype(jnp.float32) ** alpha


MEAN = power(1.0)


def shifted_power(alpha: float) -> Penalty:
    """Returns the penalty ((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14).

    The Transformer uses it with alpha 0.6 (Vaswani et al. 2017, section 6.1).
    """
    return lambda length: ((5 + length.astype(jnp.float32)) / 6) ** alpha


class Beams(NamedTuple):
    """State of beam search.

    Attributes:
      running: Unfinished candidates, the most likely first; -1 at empty positions.
      scores: Their log probabilities.
      finished: Finished hypotheses, the best first.
      finished_scores: Their log probabilities divided by the length penalty.
      filled: Entries of `finished` that contain a hypothesis.
      can_improve: Examples whose running candidates can still become the best hypothesis.
      exhausted: Whether all candidates have ended.
      end: Number of filled columns of `running`.
      num_new: Number of generated tokens.
      cache: Cache of `running`, with rows B * K; covers all filled columns but the last.
    """

    running: Int[Array, "B K T"]
    scores: Float[Array, "B K"]
    finished: Int[Array, "B K T"]
    finished_scores: Float[Array, "B K"]
    filled: Bool[Array, "B K"]
    can_improve: Bool[Array, " B"]
    exhausted: Bool[Array, ""]
    end: Int[Array, ""]
    num_new: Int[Array, ""]
    cache: Cache


def check_width(width: int, vocab_size: int) -> None:
    """Checks the width of a beam.

    Raises:
      UserError: the beam is wider than the vocabulary, or less than 1.
    """
    if not 1 <= width <= vocab_size:
        raise UserError(
            f"invalid beam width: got {width}, expected 1 to the vocabulary size {vocab_size:,}"
        )


def search(
    decoder: Decoder,
    cache: Cache,
    history: Int[Array, "B P"],
    *,
    width: int,
    max_new_tokens: int,
    end_id: int | None = None,
    penalty: Penalty = MEAN,
    sampler: TokenSampler = GREEDY,
) -> tuple[Int[Array, "B N"], Float[Array, " B"]]:
    """Finds the best continuation of every example.

    Args:
      decoder: The model.
      cache: Covers all columns of `history` but the last.
      history: Tokens so far, left-padded with -1.
      width: K, number of candidates per example.
      max_new_tokens: N.
      end_id: Token that ends a continuation, and is part of the result; None for none.
      penalty: Length penalty, the divisor of log probabilities.
      sampler: Its penalties of repetition apply to log probabilities; it does not sample.

    Returns:
      Tokens, -1 after `end_id`, and the log probability divided by the length penalty.

    Raises:
      UserError: the beam is wider than the vocabulary.
    """
    body = functools.partial(
        advance,
        decoder,
        end_id=end_id,
        max_new_tokens=max_new_tokens,
        penalty=penalty,
        sampler=sampler,
    )
    beams = init_beams(decoder, cache, history, width, max_new_tokens)
    beams = jax.lax.while_loop(should_continue, body, beams)
    return beams.finished[:, 0, history.shape[1] :], beams.finished_scores[:, 0]


def init_beams(
    decoder: Decoder, cache: Cache, history: Int[Array, "B P"], width: int, max_new_tokens: int
) -> Beams:
    """Returns the state before the first generated token.

    All K candidates are the history; only the first has a score that can be selected.
    """
    size = len(history)
    padded = jnp.pad(history, ((0, 0), (0, max_new_tokens)), constant_values=-1)
    padded = jnp.broadcast_to(padded[:, None], (size, width, padded.shape[1]))
    excluded = jnp.full((size, width), _EXCLUDED)
    return Beams(
        running=padded,
        scores=excluded.at[:, 0].set(0.0),
        finished=padded,
        finished_scores=excluded,
        filled=jnp.zeros((size, width), bool),
        can_improve=jnp.ones(size, bool),
        exhausted=jnp.zeros((), bool),
        end=jnp.int32(history.shape[1]),
        num_new=jnp.int32(0),
        cache=decoder.take(cache, jnp.repeat(jnp.arange(size), width)),
    )


def should_continue(beams: Beams) -> Bool[Array, ""]:
    """Whether another step can change the result."""
    return beams.can_improve.any() & ~beams.exhausted


def advance(
    decoder: Decoder,
    beams: Beams,
    *,
    end_id: int | None,
    max_new_tokens: int,
    penalty: Penalty,
    sampler: TokenSampler = GREEDY,
) -> Beams:
    """Extends every candidate by a token, and selects the best K candidates.

    Args:
      decoder: The model.
      beams: State so far.
      end_id: Token that ends a continuation; None for none.
      max_new_tokens: N, at which all candidates end.
      penalty: Length penalty, the divisor of log probabilities.
      sampler: Its penalties of repetition apply to log probabilities.

    Raises:
      UserError: the beam is wider than the vocabulary.
    """
    size, width, _ = beams.running.shape
    totals, cache = _score_continuations(decoder, beams, sampler)
    vocab_size = totals.shape[-1] // width
    check_width(width, vocab_size)
    # 2 K: at most one continuation of each candidate ends with `end_id`, so at least K remain.
    scores, flat = jax.lax.top_k(totals, 2 * width)
    source, token = flat // vocab_size, flat % vocab_size
    histories = _gather(beams.running, source).at[:, :, beams.end].set(token)
    num_new = beams.num_new + 1
    ends = jnp.broadcast_to(num_new >= max_new_tokens, token.shape)
    if end_id is not None:
        ends = ends | (token == end_id)

    running_scores, selected = jax.lax.top_k(scores + ends * _EXCLUDED, width)
    rows = _gather(source, selected) + width * jnp.arange(size)[:, None]
    beams = _add_finished(beams, histories, scores / penalty(num_new), ends)
    reachable = running_scores[:, :1] / penalty(num_new)
    worst = jnp.where(beams.filled, beams.finished_scores.min(axis=1, keepdims=True), _EXCLUDED)
    return beams._replace(
        running=_gather(histories, selected),
        scores=running_scores,
        can_improve=beams.can_improve & (reachable > worst).any(axis=1),
        exhausted=ends.all(),
        end=beams.end + 1,
        num_new=num_new,
        cache=decoder.take(cache, rows.reshape(-1)),
    )


def _score_continuations(
    decoder: Decoder, beams: Beams, sampler: TokenSampler
) -> tuple[Float[Array, "B candidates"], Cache]:
    """Returns the log probability of every candidate extended by every token."""
    size, width, length = beams.running.shape
    histories = beams.running.reshape(size * width, length)
    logits, cache = decoder.step(beams.cache, jnp.take(histories, beams.end - 1, axis=1))
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    log_probs = sampler.penalize(log_probs, histories, beams.end).reshape(size, width, -1)
    return (log_probs + beams.scores[..., None]).reshape(size, -1), cache


def _add_finished(
    beams: Beams,
    histories: Int[Array, "B twice T"],
    scores: Float[Array, "B twice"],
    ends: Bool[Array, "B twice"],
) -> Beams:
    """Adds candidates that end among the best K to the finished hypotheses, of which K are kept."""
    width = beams.running.shape[1]
    ended = ends & (jnp.arange(2 * width) < width)
    scores = scores + ~(ended & beams.can_improve[:, None]) * _EXCLUDED
    all_scores = jnp.concatenate([beams.finished_scores, scores], axis=1)
    best, selected = jax.lax.top_k(all_scores, width)
    return beams._replace(
        finished=_gather(jnp.concatenate([beams.finished, histories], axis=1), selected),
        finished_scores=best,
        filled=_gather(jnp.concatenate([beams.filled, ended], axis=1), selected),
    )


def _gather(values: Array, indices: Int[Array, "B n"]) -> Array:
    """Gathers values of each example along the second axis."""
    return jax.vmap(lambda row, index: row[index])(values, indices)
