"""Sample the next token of each row: temperature, top-k, top-p, repetition penalties.

`history` [R T] are the tokens so far, -1 at empty positions (`search.py`). R rows are decoded
together: the examples of a batch, or all beams of all examples.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from bertjax.errors import UserError

EXCLUDED = -jnp.inf
"""Score of a token with probability zero."""


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
