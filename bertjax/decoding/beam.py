"""Beam search: the most likely continuation among `width` candidates at a time.

Candidates and hypotheses are kept as in transformers' `generate` with its default early stopping,
so that the same scores give the same tokens. The contract with a model is that of `search.py`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax.decoding.sampling import Choice
from bertjax.decoding.search import GREEDY, Cache, Decoder
from bertjax.errors import UserError

_OUT = -1e9
"""Added to the score of what may not be chosen."""

Penalty = Callable[[Int[Array, ""]], Float[Array, ""]]
"""From the length of a continuation to what its log probability is divided by."""


def power(alpha: float) -> Penalty:
    """The length to the power of alpha, as in transformers: 0 favours the short, 1 is the mean."""
    return lambda length: length.astype(jnp.float32) ** alpha


MEAN = power(1.0)


def shifted_power(alpha: float) -> Penalty:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, equation 14), as the Transformer has it."""
    return lambda length: ((5 + length.astype(jnp.float32)) / 6) ** alpha


class Beams(NamedTuple):
    """Where a beam search is.

    Attributes:
      running: Histories that continue, the most likely first; -1 where there is no token.
      scores: Their log probabilities.
      complete: Histories that have ended, the best first.
      complete_scores: Theirs, divided by the penalty of their length.
      filled: Which places of `complete` are taken.
      open: Examples of which something better may still come.
      exhausted: Whether nothing continues.
      end: How many columns of histories are taken.
      made: How many tokens were added.
      cache: Of `running`, row after row; has read all columns but the last.
    """

    running: Int[Array, "B K T"]
    scores: Float[Array, "B K"]
    complete: Int[Array, "B K T"]
    complete_scores: Float[Array, "B K"]
    filled: Bool[Array, "B K"]
    open: Bool[Array, " B"]
    exhausted: Bool[Array, ""]
    end: Int[Array, ""]
    made: Int[Array, ""]
    cache: Cache


def check_width(width: int, vocab_size: int) -> None:
    """Refuses a beam that is wider than there are tokens.

    Raises:
      UserError: naming both numbers.
    """
    if not 1 <= width <= vocab_size:
        raise UserError(
            f"a beam of {width} came, the vocabulary has {vocab_size:,} tokens: expected 1 to as "
            f"many"
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
    choice: Choice = GREEDY,
) -> tuple[Int[Array, "B N"], Float[Array, " B"]]:
    """The best continuation of every example, and its log probability over the penalty.

    Args:
      decoder: The model.
      cache: Of all columns of the history but the last.
      history: Tokens so far; rows that are shorter begin with -1.
      width: K, candidates at a time.
      max_new_tokens: N.
      end_id: The token that ends a continuation; it is part of the result.
      penalty: What log probabilities of different lengths are divided by.
      choice: Its control of repetition applies to log probabilities.

    Raises:
      UserError: the beam is wider than the vocabulary.
    """
    once = functools.partial(
        advance,
        decoder,
        end_id=end_id,
        max_new_tokens=max_new_tokens,
        penalty=penalty,
        choice=choice,
    )
    beams = begin(decoder, cache, history, width, max_new_tokens)
    beams = jax.lax.while_loop(goes_on, once, beams)
    return beams.complete[:, 0, history.shape[1] :], beams.complete_scores[:, 0]


def begin(
    decoder: Decoder, cache: Cache, history: Int[Array, "B P"], width: int, max_new_tokens: int
) -> Beams:
    """The state before the first token: all candidates are the history, and one of them counts."""
    size = len(history)
    room = jnp.pad(history, ((0, 0), (0, max_new_tokens)), constant_values=-1)
    room = jnp.broadcast_to(room[:, None], (size, width, room.shape[1]))
    out = jnp.full((size, width), _OUT)
    return Beams(
        running=room,
        scores=out.at[:, 0].set(0.0),
        complete=room,
        complete_scores=out,
        filled=jnp.zeros((size, width), bool),
        open=jnp.ones(size, bool),
        exhausted=jnp.zeros((), bool),
        end=jnp.int32(history.shape[1]),
        made=jnp.int32(0),
        cache=decoder.take(cache, jnp.repeat(jnp.arange(size), width)),
    )


def goes_on(beams: Beams) -> Bool[Array, ""]:
    """Whether another token is worth its while."""
    return beams.open.any() & ~beams.exhausted


def advance(
    decoder: Decoder,
    beams: Beams,
    *,
    end_id: int | None,
    max_new_tokens: int,
    penalty: Penalty,
    choice: Choice = GREEDY,
) -> Beams:
    """Adds a token to every candidate, and keeps the best of what comes of them."""
    size, width, _ = beams.running.shape
    totals, cache = _totals(decoder, beams, choice)
    vocab_size = totals.shape[-1] // width
    check_width(width, vocab_size)
    # Twice as many as are kept: if half of them end, there are still enough to continue with.
    scores, at = jax.lax.top_k(totals, 2 * width)
    origin, token = at // vocab_size, at % vocab_size
    histories = _pick(beams.running, origin).at[:, :, beams.end].set(token)
    made = beams.made + 1
    ends = jnp.broadcast_to(made >= max_new_tokens, token.shape)
    if end_id is not None:
        ends = ends | (token == end_id)

    running_scores, kept = jax.lax.top_k(scores + ends * _OUT, width)
    rows = _pick(origin, kept) + width * jnp.arange(size)[:, None]
    beams = _add_complete(beams, histories, scores / penalty(made), ends)
    reachable = running_scores[:, :1] / penalty(made)
    worst = jnp.where(beams.filled, beams.complete_scores.min(axis=1, keepdims=True), _OUT)
    return beams._replace(
        running=_pick(histories, kept),
        scores=running_scores,
        open=beams.open & (reachable > worst).any(axis=1),
        exhausted=ends.all(),
        end=beams.end + 1,
        made=made,
        cache=decoder.take(cache, rows.reshape(-1)),
    )


def _totals(
    decoder: Decoder, beams: Beams, choice: Choice
) -> tuple[Float[Array, "B candidates"], Cache]:
    """The log probability of every candidate with every token behind it."""
    size, width, room = beams.running.shape
    histories = beams.running.reshape(size * width, room)
    logits, cache = decoder.step(beams.cache, jnp.take(histories, beams.end - 1, axis=1))
    chances = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    chances = choice.controlled(chances, histories, beams.end).reshape(size, width, -1)
    return (chances + beams.scores[..., None]).reshape(size, -1), cache


def _add_complete(
    beams: Beams,
    histories: Int[Array, "B twice T"],
    scores: Float[Array, "B twice"],
    ends: Bool[Array, "B twice"],
) -> Beams:
    """Keeps what has ended, where it is among the best: of candidates and of what ended before."""
    width = beams.running.shape[1]
    ended = ends & (jnp.arange(2 * width) < width)
    scores = scores + ~(ended & beams.open[:, None]) * _OUT
    best, kept = jax.lax.top_k(jnp.concatenate([beams.complete_scores, scores], axis=1), width)
    return beams._replace(
        complete=_pick(jnp.concatenate([beams.complete, histories], axis=1), kept),
        complete_scores=best,
        filled=_pick(jnp.concatenate([beams.filled, ended], axis=1), kept),
    )


def _pick(values: Array, at: Int[Array, "B n"]) -> Array:
    """The values of each example at some places."""
    return jax.vmap(lambda row, at: row[at])(values, at)
