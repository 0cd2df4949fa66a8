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
tokens, call the parts of the loop: `init_state` and `advance`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bertjax.decoding.sampling import TokenSampler

Cache = PyTree

Step = Callable[[Cache, Int[Array, " R"]], tuple[Float[Array, "R V"], Cache]]

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
