"""Load a trained causal LM for inference: scores, and a decoder with a key-value cache.

load            RUN -> LanguageModel
LanguageModel   scores of what follows, all at once or token by token
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import build, pretrained
from bertjax.decoding.search import Cache, Decoder
from bertjax.errors import UserError
from bertjax.interfaces import Params, Tokenizer
from bertjax.pretrainer import Pretrainer
from bertjax.tokenizers.special_tokens import end_of_text

OBJECTIVE = "causal_lm"


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A model and what belongs to it.

    Attributes:
      pretrainer: The model with its objective.
      params: On the device; functions that are compiled take them as an argument.
      tokenizer: Of the run.
      max_length: Tokens of the longest text that it reads.
      end_id: The token at which a text ends; None if its tokenizer has none.
      config: Of the run.
    """

    pretrainer: Pretrainer
    params: Params
    tokenizer: Tokenizer
    max_length: float
    end_id: int | None
    config: Any

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.pretrainer.encoder.vocab_size

    @property
    def learned(self) -> float:
        """Tokens of the longest texts that it learned from: beyond, its positions may know nothing.

        Of an imported model, as many as it reads.
        """
        if "max_seq_length" not in self.config.data:
            return self.max_length
        return max(phase.max_seq_length for phase in build.phases(self.config))

    @property
    def beginning(self) -> list[int]:
        """What a text begins with: in our corpora the end of the one before.

        An imported model continues with a text as it is.
        """
        return [] if self.end_id is None or "imported" in self.config else [self.end_id]

    def decoder(self, params: Params) -> Decoder:
        """What a search asks (`decoding/search.py`)."""

        def step(cache: Cache, tokens: Int[Array, " R"]) -> tuple[Float[Array, "R V"], Cache]:
            there = jnp.ones((len(tokens), 1), bool)
            batch = {"input_ids": tokens[:, None], "attention_mask": there}
            return self._apply(params, _next, batch, cache)

        return Decoder(step, lambda cache, rows: cache.take(rows))

    def begin(self, params: Params, history: Int[Array, "B P"], max_new_tokens: int) -> Cache:
        """The cache of texts but for their last token; -1 is padding."""
        ids = history[:, :-1]
        batch = {"input_ids": jnp.maximum(ids, 0), "attention_mask": ids >= 0}
        return self._apply(params, _begin, batch, max_new_tokens + 1)

    @functools.cached_property
    def predictions(self):
        """(params, ids [B L], there [B L]) -> how likely each token was, from the second on.

        Log probabilities [B L-1], and whether the token was the most likely; compiled.
        """

        def run(params: Params, ids: Int[Array, "B L"], there: Bool[Array, "B L"]):
            batch = {"input_ids": ids, "attention_mask": there}
            return self.pretrainer.apply({"params": params}, batch, method=_predictions)

        return jax.jit(run)

    def _apply(self, params: Params, method: Any, *arguments: Any) -> Any:
        variables = {"params": params}
        made, _ = self.pretrainer.apply(variables, *arguments, method=method, mutable=["cache"])
        return made


def load(name: str, precision: str = "auto") -> LanguageModel:
    """Finds RUN, RUN@STEP or RUN@best and reads it.

    Args:
      name: Of the run.
      precision: As `config.model.precision`; auto is float32 on a CPU, where one token at a time
        gains nothing from narrower operands.

    Raises:
      UserError: there is no such run, or it has not learned to continue with texts.
    """
    run = pretrained.load(name)
    if OBJECTIVE not in run.source.config.get("objectives", {}):
        raise UserError(
            f"{run.source.run} has no objective {OBJECTIVE}, and cannot generate text: expected a "
            "run of a config such as configs/gpt2.py, or an imported GPT"
        )
    tokenizer = run.tokenizer
    if precision == "auto" and jax.default_backend() == "cpu":
        precision = "float32"
    objectives = {OBJECTIVE: run.objective(OBJECTIVE, tokenizer)}
    return LanguageModel(
        Pretrainer(run.encoder(precision), objectives),
        jax.tree.map(jnp.asarray, run.params("encoder")),
        tokenizer,
        build.positions(run.config.model),
        end_of_text(tokenizer),
        run.config,
    )


def check_length(model: LanguageModel, length: int, what: str, remedy: str) -> None:
    """Refuses a text that is longer than the model reads.

    Raises:
      UserError: naming both lengths.
    """
    if length > model.max_length:
        max_new_tokens = "any number" if math.isinf(model.max_length) else f"{model.max_length:,}"
        raise UserError(f"{what} has {length:,} tokens, the model reads {max_new_tokens}: {remedy}")


def _begin(module: Pretrainer, batch: dict, max_new_tokens: int) -> Cache:
    return module.encoder.prefill(batch, max_new_tokens)[1]


def _next(module: Pretrainer, batch: dict, cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
    sequence, cache = module.encoder.decode(batch, cache)
    return getattr(module, OBJECTIVE).logits(module.encoder, sequence[:, -1]), cache


def _predictions(module: Pretrainer, batch: dict) -> tuple[Array, Array]:
    sequence = module.encoder(batch, train=False).sequence[:, :-1]
    labels = batch["input_ids"][:, 1:]
    return getattr(module, OBJECTIVE).predictions(module.encoder, sequence, labels)
