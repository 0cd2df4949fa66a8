"""Causal language models for lm-evaluation-harness (Gao et al. 2021).

    import lm_eval
    from bertjax.inference.lm_eval_model import lm_eval_model
    lm_eval.simple_evaluate(lm_eval_model("runs/gpt2"), tasks=["lambada_openai"])

Texts are scored as by `bertjax evaluate perplexity` and continued as by `bertjax generate`: the
end-of-text token, if the tokenizer has one, precedes each text that is scored. It precedes a
context only if the model was trained by bertjax: the harness has none there for other models.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.constraints import PositiveInt, check_value
from bertjax.decoding.search import TokenSampler
from bertjax.errors import UserError
from bertjax.huggingface import run_cache
from bertjax.inference import generate, language_model, perplexity
from bertjax.inference.language_model import LanguageModel
from bertjax.inference.perplexity import Window
from bertjax.pretrained import Pretrained

_MAX_NEW_TOKENS = 256
"""Default of `max_gen_toks`, as for Hugging Face models in the harness."""

_BUCKET = 32
"""Texts are padded to a multiple of this, so that few lengths are compiled."""


def lm_eval_model(model: str | Pretrained, *, batch_size: int = 8, precision: str = "auto") -> Any:
    """Loads a causal language model as an `lm_eval.api.model.LM`.

    Args:
      model: RUN, RUN@STEP, RUN@best or a Hugging Face folder, or a loaded model.
      batch_size: Texts per batch.
      precision: As `config.model.precision`.

    Raises:
      UserError: lm_eval is not installed, the run has no causal LM objective, or `batch_size` is
        invalid.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise UserError(
            f"lm_eval_model requires lm_eval ({error}); pip install 'bertjax[lm-eval]'"
        ) from None
    check_value(PositiveInt, batch_size, "batch_size")
    run = model if isinstance(model, Pretrained) else run_cache.find_run(model)
    loaded = language_model.load(run, precision)

    class CausalLM(LM):
        """Methods of the harness; a request's `args` are texts."""

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            pairs = [_encode_pair(loaded, *request.args) for request in requests]
            return _score(loaded, pairs, batch_size)

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            encoded = loaded.tokenizer.encode_batch([request.args[0] for request in requests])
            rows = [[*_start(loaded), *ids] for ids in encoded]
            windows = [_rolling_windows(ids, int(loaded.train_length)) for ids in rows]
            pairs = [(window.ids, window.first) for window in itertools.chain(*windows)]
            scores = iter(_score(loaded, pairs, batch_size))
            return [sum(next(scores)[0] for _ in own) for own in windows]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return [_continue(loaded, *request.args) for request in requests]

    return CausalLM()


def _start(model: LanguageModel) -> list[int]:
    return [] if model.end_id is None else [model.end_id]


def _rolling_windows(ids: Sequence[int], length: int) -> list[Window]:
    """Returns windows that predict each token once, as `get_rolling_token_windows` of the harness.

    They overlap by one token, except that the last one has the full length, and so more context.
    """
    windows = list(perplexity.split_windows(ids, length, length - 1))
    if len(windows) > 1:
        num_scored = len(windows[-1].ids) - windows[-1].first
        windows[-1] = Window(ids[-length:], length - num_scored)
    return windows


def _encode_pair(model: LanguageModel, context: str, text: str) -> tuple[list[int], int]:
    """Returns the tokens of both texts, truncated on the left, and the index of the first scored.

    Spaces between the texts are part of the second one, as in the harness.
    """
    kept = context.rstrip()
    text = context[len(kept) :] + text
    whole, before = model.tokenizer.encode_batch([kept + text, kept])
    start = model.start_ids if kept else _start(model)
    ids, first = [*start, *whole], max(len(start) + len(before), 1)
    removed = int(max(0, len(ids) - model.train_length))
    return ids[removed:], max(first - removed, 1)


def _score(
    model: LanguageModel, pairs: Sequence[tuple[Sequence[int], int]], batch_size: int
) -> list[tuple[float, bool]]:
    """Returns the log probability of the scored tokens, and whether greedy decoding gives them."""
    found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda number: len(pairs[number][0]))
    for begin in range(0, len(order), batch_size):
        numbers = order[begin : begin + batch_size]
        rows = [pairs[number][0] for number in numbers]
        length = int(min(-(-max(map(len, rows)) // _BUCKET) * _BUCKET, model.max_length))
        ids, mask = perplexity.pad_right(rows, length, batch_size)
        log_probs, is_greedy = map(np.asarray, model.score_tokens(model.params, ids, mask))
        for row, number in enumerate(numbers):
            scored = slice(pairs[number][1] - 1, len(rows[row]) - 1)
            total = float(log_probs[row, scored].sum(dtype=np.float64))
            found[number] = (total, bool(is_greedy[row, scored].all()))
    return found


def _continue(model: LanguageModel, context: str, options: dict[str, Any]) -> str:
    until = options.get("until", ())
    count = options.get("max_gen_toks", _MAX_NEW_TOKENS)
    temperature = options.get("temperature", 0.0) if options.get("do_sample") else 0.0
    settings = generate.Settings(
        max_new_tokens=count,
        sampler=TokenSampler(temperature, top_p=options.get("top_p", 1.0)),
        stop=(until,) if isinstance(until, str) else tuple(until),
        batch_size=1,
    )
    ids = [*model.start_ids, *model.tokenizer.encode_batch([context])[0]]
    room = int(min(len(ids), model.max_length - count))
    if room < 1:
        raise UserError(
            f"max_gen_toks: got {count}, expected less than the {model.max_length} positions of "
            "the model; set it in the task"
        )
    return "".join(chunk.text for chunk in generate.complete(model, [ids[-room:]], settings))
