"""Generate text from prompts with a causal LM."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bertjax.constraints import (
    Finite,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Seed,
    checked,
)
from bertjax.errors import UserError
from bertjax.validation.unused_options import Unread, check_flags

if TYPE_CHECKING:
    from bertjax.inference.generate import Settings
    from bertjax.inference.language_model import LanguageModel

EPILOG = """\
examples:
  bertjax generate --init runs/gpt2 'The river' --max_new_tokens 50
  bertjax generate --init runs/gpt2 'The river' --temperature 0.8 --top_p 0.95
  bertjax generate --init runs/gpt2 'The river' --beams 4 --no_repeat_ngram 3
  bertjax generate --init runs/gpt2 --json < prompts.txt > written.jsonl

--init is a run of a config such as configs/gpt2.py, or an imported GPT or
GPT-2. Decoding is greedy by default; --temperature samples, reproducibly for
the same --seed and index of the prompt; --beams runs beam search. A text ends
at the end-of-text token, before a --stop string, or after --max_new_tokens.

The speed is printed to standard error. It excludes the first token, which waits
for compilation, except with --beams, where all tokens are printed at once.
"""

_UNREAD = (
    Unread(
        ("top_k", "top_p", "seed"),
        "temperature",
        lambda temperature: not temperature,
        "a number > 0, since without it nothing is sampled",
        "set --temperature 1, or leave it out",
    ),
    Unread(
        ("length_penalty",),
        "beams",
        lambda beams: beams == 1,
        "an integer >= 2, since it ranks beams",
        "set --beams, or leave it out",
    ),
)


def main(argv: list[str]) -> None:
    """Generates a text for each prompt; prints the speed to standard error."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_flags(_UNREAD, vars(arguments), parser.get_default)
    prompts = arguments.prompt or _lines()
    from bertjax.inference import generate, language_model

    settings = _settings(arguments)
    model = language_model.load(arguments.init, arguments.precision)
    encoded = generate.encode(model, prompts, settings)
    show = _show_json if arguments.json else _show
    show(model, prompts, encoded, settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax generate",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "prompt",
        nargs="*",
        metavar="PROMPT",
        help="texts to continue (default: the lines of standard input)",
    )
    add(
        "--init",
        required=True,
        metavar="RUN",
        help="RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    _add_decoding_options(parser.add_argument_group("decoding").add_argument)
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=8,
        metavar="N",
        help="prompts per batch (default: 8)",
    )
    add(
        "--precision",
        default="auto",
        help="auto, float32, bfloat16 ..., as config.model.precision (default: auto)",
    )
    add("--json", action="store_true", help="print one JSON object per prompt, in order")
    return parser


def _add_decoding_options(add: Callable[..., object]) -> None:
    add(
        "--max_new_tokens",
        action=checked(PositiveInt),
        default=100,
        metavar="N",
        help="maximum number of tokens per text (default: 100)",
    )
    add(
        "--temperature",
        action=checked(NonNegativeFloat),
        default=0.0,
        metavar="T",
        help="sampling temperature, 1 for the model's distribution (default: 0, greedy)",
    )
    add(
        "--top_k",
        action=checked(NonNegativeInt),
        default=0,
        metavar="K",
        help="sample from the K most likely tokens only (default: 0, all)",
    )
    add(
        "--top_p",
        action=checked(PositiveShare),
        default=1.0,
        metavar="P",
        help="nucleus sampling: from the most likely tokens with total probability P (default: 1)",
    )
    add(
        "--beams",
        action=checked(PositiveInt),
        default=1,
        metavar="N",
        help="number of beams of beam search (default: 1, no search)",
    )
    add(
        "--length_penalty",
        action=checked(Finite),
        default=1.0,
        metavar="X",
        help="exponent of the length that divides the score of a beam; larger values favour "
        "longer texts (default: 1)",
    )
    add(
        "--repetition_penalty",
        action=checked(PositiveFloat),
        default=1.0,
        metavar="X",
        help="penalty of repeated tokens, > 1 makes them less likely (default: 1)",
    )
    add(
        "--no_repeat_ngram",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="never repeat an N-gram of tokens (default: 0, off)",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end a text before this string; may be given several times",
    )
    add(
        "--seed",
        action=checked(Seed),
        default=0,
        metavar="N",
        help="seed of sampling (default: 0)",
    )


def _lines() -> list[str]:
    from bertjax.io.lines import read_text_lines

    prompts = [text for _, text in read_text_lines(None)]
    if not prompts:
        raise UserError("no prompt: pass one, or one per line on standard input")
    return prompts


def _settings(arguments: argparse.Namespace) -> "Settings":
    from bertjax.decoding.sampling import TokenSampler
    from bertjax.inference.generate import Settings

    names = ("temperature", "top_k", "top_p", "repetition_penalty", "no_repeat_ngram")
    other_names = ("max_new_tokens", "beams", "length_penalty", "seed", "batch_size")
    return Settings(
        sampler=TokenSampler(**{name: getattr(arguments, name) for name in names}),
        stop=tuple(arguments.stop),
        **{name: getattr(arguments, name) for name in other_names},
    )


def _show(
    model: "LanguageModel", prompts: Sequence[str], encoded: Sequence, settings: "Settings"
) -> None:
    """Streams the texts in order: tokens of later prompts are buffered until earlier ones end."""
    from bertjax.inference import generate

    clock, buffered, finished = _Clock(), {}, set()
    current = 0
    print(prompts[0], end="", flush=True)
    for chunk in generate.complete(model, encoded, settings):
        clock.count(chunk.num_tokens)
        buffered[chunk.prompt] = buffered.get(chunk.prompt, "") + chunk.text
        finished |= {chunk.prompt} if chunk.finished else set()
        print(buffered.pop(current, ""), end="", flush=True)
        while current in finished:
            current += 1
            print()
            if current < len(prompts):
                print(f"\n{prompts[current]}{buffered.pop(current, '')}", end="", flush=True)
    print(clock.report(settings.beams > 1), file=sys.stderr)


def _show_json(
    model: "LanguageModel", prompts: Sequence[str], encoded: Sequence, settings: "Settings"
) -> None:
    from bertjax.inference import generate

    clock, texts, current, finished = _Clock(), dict.fromkeys(range(len(prompts)), ""), 0, set()
    for chunk in generate.complete(model, encoded, settings):
        clock.count(chunk.num_tokens)
        texts[chunk.prompt] += chunk.text
        finished |= {chunk.prompt} if chunk.finished else set()
        while current in finished:
            row = {"prompt": prompts[current], "text": texts[current]}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            current += 1
    print(clock.report(settings.beams > 1), file=sys.stderr)


class _Clock:
    """Measures tokens per second, excluding the first token, which waits for compilation."""

    def __init__(self):
        self._start = self._first = self._last = time.monotonic()
        self._tokens = self._first_tokens = 0

    def count(self, tokens: int) -> None:
        self._last = time.monotonic()
        if not self._tokens:
            self._first, self._first_tokens = self._last, tokens
        self._tokens += tokens

    def report(self, at_once: bool) -> str:
        """Returns a line with tokens and speed; `at_once` includes the time to the first token."""
        seconds, count = self._last - self._first, self._tokens - self._first_tokens
        if at_once:
            seconds, count = self._last - self._start, self._tokens
        speed = f"{count / seconds:,.1f} tokens per second" if count and seconds else "no speed"
        return f"{self._tokens:,} tokens, {speed}, after {self._first - self._start:.1f} s"
