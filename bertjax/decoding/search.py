"""Autoregressive decoding for any model: greedy search and sampling; `beam.py` has beam search.

A model is adapted to decoding by a `Decoder`, whose `step` is a pure function

    step(cache, tokens [R]) -> (logits [R V], cache)

that reads the next token of each of R rows and returns the logits of the token after it. `cache` is
any tree of arrays of fixed shapes; it includes the position, if the model needs one. Parameters and
other values shared by all rows are closed over. `take(cache, rows)` gathers rows of the cache, in
any order and with repetition; `take_rows` does so if rows are the first axis of every array.

Decoding starts from a `history` [B P]: the tokens so far, left-padded with -1. The cache covers all
columns but the last, which is the first input of `step`. For an encoder-decoder, the history is one
column of start tokens, and the cache contains the encoder's outputs.

    tokens = search.complete(decoder, cache, history, max_new_tokens=20, end_id=0)
    tokens, scores = beam.search(decoder, cache, history, width=4, max_new_tokens=20, end_id=0)

Both run one `while_loop` on the device, and return [B max_new_tokens], -1 after `end_id`. To stream
tokens, call the parts of the loop: `init_state` and `advance`. R rows are decoded together: the
examples of a batch, or all beams of all examples.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bertjax.errors import UserError

EXCLUDED = -jnp.inf
"""Score of a token with probability zero."""


Cache = PyTree

Step = Callable[[Cache, Int[Array, " R"]], tuple[Float[Array, "R V"], Cache]]


@dataclasses.dataclass(frozen=True)
class TokenSampler:
    """Samples or selects the next token from scores; greedy by default.

    Attributes:
      temperature: Divides the scores before sampling; 0 selects the highest score (greedy).
      top_k: Sample from the k highest scores only (Fan et al. 2018, section 5.1); 0 disables it.
      top_p: Sample from the smallest set of most likely tokens with this total probability
        (Holtzman et al. 2020, section 3.1); 1 disables it.
      repetition_penalty: Divides positive scores of tokens in the history, and multiplies negative
        ones (Keskar et al. 2019, section 4.1); 1 disables it.
      no_repeat_ngram_size: Length n of n-grams that occur at most once (Paulus et al. 2018, section
        2.5); 0 disables it.

    Raises:
      UserError: an attribute is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    def __post_init__(self):
        constraints = {
            "temperature": ("at least 0", self.temperature >= 0),
            "top_k": ("at least 0", self.top_k >= 0),
            "top_p": ("more than 0 and at most 1", 0 < self.top_p <= 1),
            "repetition_penalty": ("more than 0", self.repetition_penalty > 0),
            "no_repeat_ngram_size": ("at least 0", self.no_repeat_ngram_size >= 0),
        }
        for name, (constraint, is_met) in constraints.items():
            if not is_met:
                raise UserError(f"{name}: got {getattr(self, name)}, expected {constraint}")

    def penalize(
        self, scores: Float[Array, "R V"], history: Int[Array, "R T"], end: Int[Array, ""]
    ) -> Float[Array, "R V"]:
        """Applies the penalties of repetition to scores.

        Args:
          scores: Logits or log probabilities.
          history: Tokens so far.
          end: Number of filled columns of `history`.
        """
        if self.repetition_penalty != 1:
            scores = penalize_repetition(scores, history, self.repetition_penalty)
        if self.no_repeat_ngram_size:
            banned = find_repeated_ngrams(history, end, self.no_repeat_ngram_size, scores.shape[-1])
            scores = jnp.where(banned, EXCLUDED, scores)
        return scores

    def sample(
        self, scores: Float[Array, "R V"], keys: Key[Array, " R"] | None
    ) -> Int[Array, " R"]:
        """Samples a token for each row with the row's own key; greedy selection needs no keys."""
        if self.temperature == 0:
            return jnp.argmax(scores, axis=-1).astype(jnp.int32)
        scores = keep_top_k(scores / self.temperature, self.top_k)
        scores = keep_top_p(scores, self.top_p)
        return jax.vmap(jax.random.categorical)(keys, scores).astype(jnp.int32)


def penalize_repetition(
    scores: Float[Array, "R V"], history: Int[Array, "R T"], penalty: float
) -> Float[Array, "R V"]:
    """Penalizes each token of the history once, independent of its count."""
    is_repeat = _to_token_mask(jnp.ones(history.shape, bool), history, scores.shape[-1])
    return jnp.where(is_repeat, jnp.where(scores > 0, scores / penalty, scores * penalty), scores)


def find_repeated_ngrams(
    history: Int[Array, "R T"], end: Int[Array, ""], size: int, vocab_size: int
) -> Bool[Array, "R V"]:
    """Finds the next tokens that would repeat an n-gram of the history.

    Args:
      history: Tokens so far.
      end: Number of filled columns of `history`.
      size: Length of the n-grams.
      vocab_size: V.
    """
    rows, width = history.shape
    if width < size:
        return jnp.zeros((rows, vocab_size), bool)
    windows = width - size + 1
    same = jnp.ones((rows, windows), bool)
    for offset in range(size - 1):
        latest = jnp.take(history, end - size + 1 + offset, axis=1, mode="fill", fill_value=-1)
        earlier = history[:, offset : offset + windows]
        same &= (earlier == latest[:, None]) & (earlier >= 0)
    return _to_token_mask(same, history[:, size - 1 :], vocab_size)


def keep_top_k(scores: Float[Array, "R V"], count: int) -> Float[Array, "R V"]:
    """Excludes all but the `count` highest scores and ties with the last of them; 0 keeps all."""
    if not 0 < count < scores.shape[-1]:
        return scores
    lowest = jax.lax.top_k(scores, count)[0][:, -1:]
    return jnp.where(scores < lowest, EXCLUDED, scores)


def keep_top_p(scores: Float[Array, "R V"], probability: float) -> Float[Array, "R V"]:
    """Excludes all but the smallest set of tokens with at least this total probability."""
    if probability >= 1:
        return scores
    highest = jnp.flip(jnp.sort(scores, axis=-1), axis=-1)
    probabilities = jax.nn.softmax(highest, axis=-1)
    kept = jnp.cumsum(probabilities, axis=-1) - probabilities < probability
    lowest = jnp.min(jnp.where(kept, highest, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(scores < lowest, EXCLUDED, scores)


def _to_token_mask(
    where: Bool[Array, "R T"], tokens: Int[Array, "R T"], vocab_size: int
) -> Bool[Array, "R V"]:
    """Returns the tokens of the vocabulary that occur at positions where `where` is true."""
    at = jnp.where(where & (tokens >= 0), tokens, vocab_size)
    marks = jnp.zeros((len(tokens), vocab_size), bool)
    return jax.vmap(lambda row, at: row.at[at].set(True, mode="drop"))(marks, at)


GREEDY = TokenSampler()


def take_rows(cache: Cache, rows: Int[Array, " S"]) -> Cache:
    """Gathers rows of a cache whose arrays have rows as their first axis."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), cache)


class Decoder(NamedTuple):
    """Model interface of decoding; see the module docstring.

    Attributes:
      step: Reads a token of each row, and returns logits and the new cache.
      take: Gathers rows of the cache.
    """

    step: Step
    take: Callable[[Cache, Int[Array, " S"]], Cache] = take_rows


class State(NamedTuple):
    """State of decoding.

    Attributes:
      history: Tokens so far, -1 at empty positions.
      end: Number of filled columns of `history`.
      num_new: Number of generated tokens.
      cache: Covers all filled columns but the last.
      finished: Rows that have generated `end_id`, and get no more tokens.
    """

    history: Int[Array, "R T"]
    end: Int[Array, ""]
    num_new: Int[Array, ""]
    cache: Cache
    finished: Bool[Array, " R"]


def init_state(cache: Cache, history: Int[Array, "R P"], max_new_tokens: int) -> State:
    """Returns the state before the first generated token."""
    padded = jnp.pad(history, ((0, 0), (0, max_new_tokens)), constant_values=-1)
    finished = jnp.zeros(len(history), bool)
    return State(padded, jnp.int32(history.shape[1]), jnp.int32(0), cache, finished)


def advance(
    decoder: Decoder,
    state: State,
    *,
    end_id: int | None = None,
    sampler: TokenSampler = GREEDY,
    keys: Key[Array, " R"] | None = None,
) -> State:
    """Generates a token for every row that is not finished.

    Sampling depends only on the key of the row and on its number of generated tokens: neither on
    other rows of the batch nor on padding.

    Args:
      decoder: The model.
      state: State so far.
      end_id: Token that ends a row; None for none.
      sampler: Samples or selects tokens.
      keys: A random key for each row; None for greedy search.
    """
    logits, cache = decoder.step(state.cache, jnp.maximum(_last(state), 0))
    scores = sampler.penalize(logits.astype(jnp.float32), state.history, state.end)
    if keys is not None:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, state.num_new)
    tokens = jnp.where(state.finished, -1, sampler.sample(scores, keys))
    finished = state.finished
    if end_id is not None:
        finished = finished | (tokens == end_id)
    history = state.history.at[:, state.end].set(tokens)
    return State(history, state.end + 1, state.num_new + 1, cache, finished)


def complete(
    decoder: Decoder,
    cache: Cache,
    history: Int[Array, "R P"],
    *,
    max_new_tokens: int,
    end_id: int | None = None,
    sampler: TokenSampler = GREEDY,
    keys: Key[Array, " R"] | None = None,
) -> Int[Array, "R N"]:
    """Generates tokens for every row until `end_id`, or `max_new_tokens`.

    Args:
      decoder: The model.
      cache: Covers all columns of `history` but the last.
      history: Tokens so far, left-padded with -1.
      max_new_tokens: N.
      end_id: Token that ends a row, and is part of the result; None for none.
      sampler: Samples or selects tokens.
      keys: A random key for each row; None for greedy search.

    Returns:
      Generated tokens, -1 after `end_id`.
    """

    def should_continue(state: State) -> Bool[Array, ""]:
        return (state.num_new < max_new_tokens) & ~state.finished.all()

    def body(state: State) -> State:
        return advance(decoder, state, end_id=end_id, sampler=sampler, keys=keys)

    state = init_state(cache, history, max_new_tokens)
    state = jax.lax.while_loop(should_continue, body, state)
    return state.history[:, history.shape[1] :]


def _last(state: State) -> Int[Array, " R"]:
    return jnp.take(state.history, state.end - 1, axis=1)
