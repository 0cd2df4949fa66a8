"""Token-by-token decoding for any model: greedy or sampled; beam search is in `beam.py`.

The contract. A model that writes is a `Decoder`: a pure function

    step(cache, tokens [R]) -> (logits [R V], cache)

that reads the next token of each of R rows and scores what may follow it. What it remembers is the
`cache`, any tree of arrays of fixed shapes. It knows for itself how much it has read, for example
by a counter in the cache; whatever all rows share, such as parameters, it closes over. `take(cache,
rows)` gives the cache of other rows: of some, of some twice, in another order. Where every array of
the cache has the rows along its first axis, `take_rows` does.

A search starts with a `history` [B P]: the tokens so far, ending in the last column; rows that are
shorter begin with -1. The cache has read all of it but the last column, which is the first token
that `step` is given. A decoder of an encoder's output begins with one column of start tokens, and a
cache that holds what it needs of the encoder, with as many rows.

    tokens = search.complete(decoder, cache, history, max_new_tokens=20, end_id=0)
    tokens, scores = beam.search(decoder, cache, history, width=4, max_new_tokens=20, end_id=0)

Both are traced into one loop on the device, and give [B max_new_tokens], -1 after `end_id`. To look
at tokens while they are made, `begin` and `advance` are the parts of the loop.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bertjax.decoding.sampling import Choice

Cache = PyTree

Step = Callable[[Cache, Int[Array, " R"]], tuple[Float[Array, "R V"], Cache]]

GREEDY = Choice()


def take_rows(cache: Cache, rows: Int[Array, " S"]) -> Cache:
    """The cache of other rows, where they lie along the first axis of every array."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=0), cache)


class Decoder(NamedTuple):
    """What a search asks of a model; see the head of this file."""

    step: Step
    take: Callable[[Cache, Int[Array, " S"]], Cache] = take_rows


class State(NamedTuple):
    """Where a search is.

    Attributes:
      history: Tokens so far, -1 where there are none.
      end: How many columns of it are taken.
      made: How many tokens were added.
      cache: Has read all columns but the last.
      finished: Rows that have come to their end; they get no more tokens.
    """

    history: Int[Array, "R T"]
    end: Int[Array, ""]
    made: Int[Array, ""]
    cache: Cache
    finished: Bool[Array, " R"]


def begin(cache: Cache, history: Int[Array, "R P"], max_new_tokens: int) -> State:
    """The state before the first token."""
    room = jnp.pad(history, ((0, 0), (0, max_new_tokens)), constant_values=-1)
    finished = jnp.zeros(len(history), bool)
    return State(room, jnp.int32(history.shape[1]), jnp.int32(0), cache, finished)


def advance(
    decoder: Decoder,
    state: State,
    *,
    end_id: int | None = None,
    choice: Choice = GREEDY,
    keys: Key[Array, " R"] | None = None,
) -> State:
    """Adds a token to every row that is not finished.

    A draw depends on the row's key and on how many tokens the row has got, and on nothing else: not
    on its neighbours, nor on how long they are.
    """
    logits, cache = decoder.step(state.cache, jnp.maximum(_last(state), 0))
    scores = choice.controlled(logits.astype(jnp.float32), state.history, state.end)
    if keys is not None:
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, state.made)
    tokens = jnp.where(state.finished, -1, choice.draw(scores, keys))
    finished = state.finished
    if end_id is not None:
        finished = finished | (tokens == end_id)
    history = state.history.at[:, state.end].set(tokens)
    return State(history, state.end + 1, state.made + 1, cache, finished)


def complete(
    decoder: Decoder,
    cache: Cache,
    history: Int[Array, "R P"],
    *,
    max_new_tokens: int,
    end_id: int | None = None,
    choice: Choice = GREEDY,
    keys: Key[Array, " R"] | None = None,
) -> Int[Array, "R N"]:
    """Goes on with every row until it ends, at most `max_new_tokens` further.

    Args:
      decoder: The model.
      cache: Of all columns of the history but the last.
      history: Tokens so far.
      max_new_tokens: N.
      end_id: The token that ends a row; it is part of the result.
      choice: How tokens are chosen.
      keys: A random key for each row, where tokens are sampled.
    """

    def goes_on(state: State) -> Bool[Array, ""]:
        return (state.made < max_new_tokens) & ~state.finished.all()

    def once(state: State) -> State:
        return advance(decoder, state, end_id=end_id, choice=choice, keys=keys)

    state = jax.lax.while_loop(goes_on, once, begin(cache, history, max_new_tokens))
    return state.history[:, history.shape[1] :]


def _last(state: State) -> Int[Array, " R"]:
    return jnp.take(state.history, state.end - 1, axis=1)
