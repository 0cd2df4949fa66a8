"""Sample one token a row from vocabulary scores: temperature, top-k, top-p, repetition penalty.

Tokens so far are a `history` [R T], -1 where there is none (`decoding/search.py`).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.errors import UserError

NEVER = -jnp.inf
"""The score of a token that is not chosen."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a token is chosen; the defaults choose the most likely.

    Attributes:
      temperature: Divides the scores before one is sampled; 0 takes the highest, without drawing.
      top_k: So many of the highest are sampled from; 0 for all.
      top_p: Of the most likely, the fewest that make up this share are sampled from (Holtzman et
        al. 2020, section 3.1); 1 for all.
      repetition_penalty: Divides the positive scores of tokens of the history, and multiplies the
        negative ones (Keskar et al. 2019, section 4.1); 1 for none.
      no_repeat_ngram: No sequence of so many tokens comes twice (Paulus et al. 2018, section 2.5);
        0 for no limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def __post_init__(self):
        wanted = {
            "temperature": ("at least 0", self.temperature >= 0),
            "top_k": ("at least 0", self.top_k >= 0),
            "top_p": ("more than 0 and at most 1", 0 < self.top_p <= 1),
            "repetition_penalty": ("more than 0", self.repetition_penalty > 0),
            "no_repeat_ngram": ("at least 0", self.no_repeat_ngram >= 0),
        }
        for name, (range_, fits) in wanted.items():
            if not fits:
                raise UserError(f"{name}={getattr(self, name)}: expected {range_}")

    def controlled(
        self, scores: Float[Array, "R V"], history: Int[Array, "R T"], end: Int[Array, ""]
    ) -> Float[Array, "R V"]:
        """Scores, changed by what stands in the first `end` places of the history."""
        if self.repetition_penalty != 1:
            scores = penalize_repetition(scores, history, self.repetition_penalty)
        if self.no_repeat_ngram:
            banned = ends_of_repeats(history, end, self.no_repeat_ngram, scores.shape[-1])
            scores = jnp.where(banned, NEVER, scores)
        return scores

    def draw(self, scores: Float[Array, "R V"], keys: Key[Array, " R"] | None) -> Int[Array, " R"]:
        """One token a row; each row has a key of its own, which the highest score does not need."""
        if self.temperature == 0:
            return jnp.argmax(scores, axis=-1).astype(jnp.int32)
        scores = keep_top_k(scores / self.temperature, self.top_k)
        scores = keep_top_p(scores, self.top_p)
        return jax.vmap(jax.random.categorical)(keys, scores).astype(jnp.int32)


def penalize_repetition(
    scores: Float[Array, "R V"], history: Int[Array, "R T"], penalty: float
) -> Float[Array, "R V"]:
    """Makes the tokens of the history less likely, each once, however often it came."""
    seen = _marked(jnp.ones(history.shape, bool), history, scores.shape[-1])
    return jnp.where(seen, jnp.where(scores > 0, scores / penalty, scores * penalty), scores)


def ends_of_repeats(
    history: Int[Array, "R T"], end: Int[Array, ""], size: int, vocab_size: int
) -> Bool[Array, "R V"]:
    """The tokens with which the last `size` tokens would be some that were there before.

    Args:
      history: Tokens so far.
      end: How many of its places are taken.
      size: Tokens that may not come twice in this order.
      vocab_size: V.
    """
    rows, width = history.shape
    if width < size:
        return jnp.zeros((rows, vocab_size), bool)
    windows = width - size + 1
    same = jnp.ones((rows, windows), bool)
    for place in range(size - 1):
        now = jnp.take(history, end - size + 1 + place, axis=1, mode="fill", fill_value=-1)
        there = history[:, place : place + windows]
        same &= (there == now[:, None]) & (there >= 0)
    return _marked(same, history[:, size - 1 :], vocab_size)


def keep_top_k(scores: Float[Array, "R V"], count: int) -> Float[Array, "R V"]:
    """Hides all but the `count` highest scores, and what equals the last of them; 0 keeps all."""
    if not 0 < count < scores.shape[-1]:
        return scores
    lowest = jax.lax.top_k(scores, count)[0][:, -1:]
    return jnp.where(scores < lowest, NEVER, scores)


def keep_top_p(scores: Float[Array, "R V"], share: float) -> Float[Array, "R V"]:
    """Hides all but the fewest tokens that have at least this share of the probability."""
    if share >= 1:
        return scores
    highest = jnp.flip(jnp.sort(scores, axis=-1), axis=-1)
    chances = jax.nn.softmax(highest, axis=-1)
    needed = jnp.cumsum(chances, axis=-1) - chances < share
    lowest = jnp.min(jnp.where(needed, highest, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(scores < lowest, NEVER, scores)


def _marked(
    where: Bool[Array, "R T"], tokens: Int[Array, "R T"], vocab_size: int
) -> Bool[Array, "R V"]:
    """Which tokens of the vocabulary stand where something is true."""
    at = jnp.where(where & (tokens >= 0), tokens, vocab_size)
    marks = jnp.zeros((len(tokens), vocab_size), bool)
    return jax.vmap(lambda row, at: row.at[at].set(True, mode="drop"))(marks, at)
