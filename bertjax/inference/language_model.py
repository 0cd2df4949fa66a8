"""Load a trained causal LM for inference: token scores, and a decoder with a key-value cache."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertjax import build, pretrained
from bertjax.decoding.search import Cache, Decoder
from bertjax.errors import UserError
from bertjax.interfaces import Params, Tokenizer
from bertjax.layers.stack import split_layers, stack_layers
from bertjax.pretrainer import Pretrainer
from bertjax.tokenizers.special_tokens import end_of_text

OBJECTIVE = "causal_lm"


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """Causal language model with its tokenizer and parameters.

    Attributes:
      pretrainer: The model with its objective.
      params: Parameters on the device, of `split_layers`; an argument of compiled functions.
      tokenizer: Tokenizer of the run.
      max_length: Maximum number of tokens of an input; infinite without learned positions.
      end_id: Token at the end of a document; None if the tokenizer has none.
      config: Config of the run.
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
    def train_length(self) -> float:
        """Maximum sequence length in pretraining, beyond which positions are untrained.

        `max_length` for an imported model, whose lengths in pretraining are unknown.
        """
        if "max_seq_length" not in self.config.data:
            return self.max_length
        return max(phase.max_seq_length for phase in build.phases(self.config))

    @property
    def start_ids(self) -> list[int]:
        """Tokens before a document: in a bertjax corpus the end of the previous document.

        Empty for an imported model.
        """
        return [] if self.end_id is None or "imported" in self.config else [self.end_id]

    def decoder(self, params: Params) -> Decoder:
        """Returns the model interface of `decoding/search.py`."""

        def step(cache: Cache, tokens: Int[Array, " R"]) -> tuple[Float[Array, "R V"], Cache]:
            mask = jnp.ones((len(tokens), 1), bool)
            batch = {"input_ids": tokens[:, None], "attention_mask": mask}
            return self._apply(params, _decode, batch, cache)

        return Decoder(step, lambda cache, rows: cache.take(rows))

    def prefill(self, params: Params, history: Int[Array, "B P"], max_new_tokens: int) -> Cache:
        """Computes the cache of all tokens but the last of each row; -1 is padding."""
        ids = history[:, :-1]
        batch = {"input_ids": jnp.maximum(ids, 0), "attention_mask": ids >= 0}
        return self._apply(params, _prefill, batch, max_new_tokens + 1)

    @functools.cached_property
    def score_tokens(self):
        """Compiled scores of all tokens but the first: (params, ids [B L], mask [B L]) -> scores.

        The scores are log probabilities in nats [B L-1], and whether each token was the most likely
        one [B L-1].
        """

        def run(params: Params, ids: Int[Array, "B L"], mask: Bool[Array, "B L"]):
            batch = {"input_ids": ids, "attention_mask": mask}
            variables = {"params": stack_layers(params)}
            return self.pretrainer.apply(variables, batch, method=_score_tokens)

        return jax.jit(run)

    @functools.cached_property
    def compiled(self) -> dict[Any, Any]:
        """Compiled functions of `generate.py`, by the settings that they depend on."""
        return {}

    def _apply(self, params: Params, method: Any, *arguments: Any) -> Any:
        variables = {"params": stack_layers(params)}
        output, _ = self.pretrainer.apply(variables, *arguments, method=method, mutable=["cache"])
        return output


def load(name: str | pretrained.Pretrained, precision: str = "auto") -> LanguageModel:
    """Loads a language model from RUN, RUN@STEP or RUN@best.

    Args:
      name: The run, or a loaded model.
      precision: As `config.model.precision`; see `choose_precision`.

    Raises:
      UserError: there is no such run, or it has no causal LM objective.
    """
    run = pretrained.load(name)
    if OBJECTIVE not in run.source.config.get("objectives", {}):
        raise UserError(
            f"{run.source.run} has no objective {OBJECTIVE}: expected a run of a config such as "
            "configs/gpt2.py, or an imported GPT"
        )
    tokenizer = run.tokenizer
    objectives = {OBJECTIVE: run.objective(OBJECTIVE, tokenizer)}
    return LanguageModel(
        Pretrainer(run.encoder(choose_precision(precision)), objectives),
        split_layers(run.load_params("encoder")),
        tokenizer,
        build.positions(run.config.model),
        end_of_text(tokenizer),
        run.config,
    )


def choose_precision(precision: str) -> str:
    """Returns float32 for auto on a CPU: bfloat16 would cast all parameters for every token."""
    is_auto_on_cpu = precision == "auto" and jax.default_backend() == "cpu"
    return "float32" if is_auto_on_cpu else precision


def check_length(model: LanguageModel, length: int, name: str, remedy: str) -> None:
    """Checks that an input is not longer than the model's positions.

    Args:
      model: The language model.
      length: Number of tokens of the input.
      name: Name of the input in the error.
      remedy: What the user can do about it.

    Raises:
      UserError: the input is too long.
    """
    if length > model.max_length:
        raise UserError(
            f"{name} is too long: got {length:,} tokens, expected at most {model.max_length:,}; "
            f"{remedy}"
        )


def _prefill(module: Pretrainer, batch: dict, max_new_tokens: int) -> Cache:
    return module.encoder.prefill(batch, max_new_tokens)[1]


def _decode(module: Pretrainer, batch: dict, cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
    sequence, cache = module.encoder.decode(batch, cache)
    return getattr(module, OBJECTIVE).logits(module.encoder, sequence[:, -1]), cache


def _score_tokens(module: Pretrainer, batch: dict) -> tuple[Array, Array]:
    sequence = module.encoder(batch, train=False).sequence[:, :-1]
    labels = batch["input_ids"][:, 1:]
    return getattr(module, OBJECTIVE).predictions(module.encoder, sequence, labels)
