"""Generate text from prompts with a causal LM, streamed as it is sampled."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
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
  bertjax generate --init runs/gpt2 'The river' --temperature 0.8 --top_p 0.95 --seed 3
  bertjax generate --init runs/gpt2 'The river' --beams 4 --no_repeat_ngram 3
  bertjax generate --init runs/gpt2 --json < prompts.txt > written.jsonl

--init is a run of a config such as configs/gpt2.py, or an imported GPT: RUN, RUN@STEP or RUN@best.
Without prompts, every line of standard input is one. Without --temperature the most likely token is
taken each time; with it one is sampled, the same ones for the same --seed and place of a prompt. A
text ends at the model's own end of text, before a --stop, or after --max_new_tokens.

Tokens per second leave out the first, which waits for the compiler; not so with --beams, of which
all tokens are known at once.
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
    """Writes to standard output, and the speed to standard error."""
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
    add("prompt", nargs="*", help="texts to continue with (default: the lines of standard input)")
    add("--init", required=True, metavar="RUN", help="RUN, RUN@STEP or RUN@best")
    add(
        "--max_new_tokens",
        action=checked(PositiveInt),
        default=100,
        help="at most so many (default 100)",
    )
    add(
        "--temperature",
        action=checked(NonNegativeFloat),
        default=0.0,
        help="draws tokens; 1 as likely as they are",
    )
    add(
        "--top_k",
        action=checked(NonNegativeInt),
        default=0,
        help="draws from so many of the most likely",
    )
    add(
        "--top_p",
        action=checked(PositiveShare),
        default=1.0,
        help="draws from the most likely with this share",
    )
    add(
        "--beams",
        action=checked(PositiveInt),
        default=1,
        help="looks for the most likely text with so many candidates",
    )
    add(
        "--length_penalty",
        action=checked(Finite),
        default=1.0,
        help="of beams; more favours longer texts",
    )
    add(
        "--repetition_penalty",
        action=checked(PositiveFloat),
        default=1.0,
        help="more than 1 makes repeats unlikely",
    )
    add(
        "--no_repeat_ngram",
        action=checked(NonNegativeInt),
        default=0,
        help="no so many tokens come twice in a row",
    )
    add("--stop", action="append", default=[], help="ends a text before this; may be repeated")
    add("--seed", action=checked(Seed), default=0, help="of what is sampled (default 0)")
    add(
        "--batch_size", action=checked(PositiveInt), default=8, help="prompts at a time (default 8)"
    )
    add("--precision", default="auto", help="as config.model.precision (default auto)")
    add("--json", action="store_true", help="a JSON object for each prompt, in its order")
    return parser


def _lines() -> list[str]:
    from bertjax.io.lines import read_text_lines

    prompts = [text for _, text in read_text_lines(None)]
    if not prompts:
        raise UserError("no prompt: name one, or give one a line on standard input")
    return prompts


def _settings(arguments: argparse.Namespace) -> "Settings":
    from bertjax.decoding.sampling import TokenSampler
    from bertjax.inference.generate import Settings

    names = ("temperature", "top_k", "top_p", "repetition_penalty", "no_repeat_ngram")
    names_beside = ("max_new_tokens", "beams", "length_penalty", "seed", "batch_size")
    return Settings(
        sampler=TokenSampler(**{name: getattr(arguments, name) for name in names}),
        stop=tuple(arguments.stop),
        **{name: getattr(arguments, name) for name in names_beside},
    )


def _show(
    model: "LanguageModel", prompts: Sequence[str], encoded: Sequence, settings: "Settings"
) -> None:
    """One text after the other; what comes for a later one waits until it is its turn."""
    from bertjax.inference import generate

    clock, waiting, finished = _Clock(), {}, set()
    turn = 0
    print(prompts[0], end="", flush=True)
    for written in generate.complete(model, encoded, settings):
        clock.count(written.num_tokens)
        waiting[written.prompt] = waiting.get(written.prompt, "") + written.text
        finished |= {written.prompt} if written.finished else set()
        print(waiting.pop(turn, ""), end="", flush=True)
        while turn in finished:
            turn += 1
            print()
            if turn < len(prompts):
                print(f"\n{prompts[turn]}{waiting.pop(turn, '')}", end="", flush=True)
    print(clock.report(settings.beams > 1), file=sys.stderr)


def _show_json(
    model: "LanguageModel", prompts: Sequence[str], encoded: Sequence, settings: "Settings"
) -> None:
    from bertjax.inference import generate

    clock, texts, turn, finished = _Clock(), dict.fromkeys(range(len(prompts)), ""), 0, set()
    for written in generate.complete(model, encoded, settings):
        clock.count(written.num_tokens)
        texts[written.prompt] += written.text
        finished |= {written.prompt} if written.finished else set()
        while turn in finished:
            row = {"prompt": prompts[turn], "text": texts[turn]}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            turn += 1
    print(clock.report(settings.beams > 1), file=sys.stderr)


class _Clock:
    """Tokens and seconds; the first token's seconds are those of compiling."""

    def __init__(self):
        self._begun = self._first = self._last = time.monotonic()
        self._tokens = self._early = 0

    def count(self, tokens: int) -> None:
        self._last = time.monotonic()
        if not self._tokens:
            self._first, self._early = self._last, tokens
        self._tokens += tokens

    def report(self, at_once: bool) -> str:
        seconds, after = self._last - self._first, self._tokens - self._early
        if at_once:
            seconds, after = self._last - self._begun, self._tokens
        speed = f"{after / seconds:,.1f} tokens per second" if after and seconds else "no speed"
        return f"{self._tokens:,} tokens, {speed}, after {self._first - self._begun:.1f} s"
