"""Generate text by a causal language model (from prompts) or an encoder-decoder (from sources)."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bertjax.commands import _flags
from bertjax.constraints import (
    Finite,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    constraint_action,
)
from bertjax.errors import UserError
from bertjax.validation.unused_options import UnusedOptions, check_flags

if TYPE_CHECKING:
    import argparse

    from bertjax.inference.generate import Settings
    from bertjax.inference.language_model import LanguageModel

GROUP = "Use"

EPILOG = """\
examples:
  bertjax generate --model runs/gpt2 'The river' --max_new_tokens 50
  bertjax generate --model runs/gpt2 'The river' --temperature 0.8 --top_p 0.95
  bertjax generate --model runs/gpt2 'The river' --num_beams 4 --no_repeat_ngram_size 3
  bertjax generate --model runs/gpt2 --json < prompts.txt > written.jsonl
  bertjax generate --model runs/transformer --input sources.txt > targets.txt
  bertjax generate --model runs/reversal --input reversals/unseen.tsv

Causal language models: a run of a config such as gpt2, or an imported GPT or
GPT-2. Decoding is greedy by default; --temperature samples, reproducibly for
the same --seed and index of the prompt; --num_beams runs beam search. A text
ends at the end-of-text token, before a --stop string, or after
--max_new_tokens. The speed is printed to standard error. It excludes the first
token, whose time includes compilation, except with --num_beams, where all
tokens are printed at once.

Encoder-decoders: a run with the objective seq2seq. Every line is a source, or a
source, a tab and its reference target; then the fraction of exact matches is
printed to standard error. Decoding is beam search, or greedy with --num_beams
1. Its --length_penalty is alpha of ((5 + length) / 6) ** alpha, which divides
the score of a beam.
"""

_BATCHES_PER_CHUNK = 16
"""Number of batches within which sources are sorted by length."""

_UNUSED_OPTIONS = (
    UnusedOptions(
        ("top_k", "top_p", "seed"),
        "temperature",
        lambda temperature: not temperature,
        "a number > 0, since without it nothing is sampled",
        "set --temperature 1, or leave it out",
    ),
    UnusedOptions(
        ("length_penalty",),
        "num_beams",
        lambda beams: beams == 1,
        "an integer >= 2, since it ranks beams",
        "set --num_beams, or leave it out",
    ),
)

_UNUSED_BY_ENCODER_DECODERS = (
    UnusedOptions(
        (
            *("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty"),
            *("no_repeat_ngram_size", "stop", "seed"),
        ),
        "model",
        bool,
        "a causal language model, since encoder-decoders are decoded by beam search only",
        "leave it out",
    ),
)


def main(argv: list[str]) -> None:
    """Generates a text for each prompt or source; prints the speed to standard error."""
    arguments = parser().parse_args(argv)
    _flags.refuse_input_with_texts(arguments.input, arguments.prompt)
    from bertjax.huggingface import run_cache
    from bertjax.inference import translate

    name = run_cache.find_run(arguments.model)
    if translate.is_encoder_decoder(name):
        _generate_targets(name, arguments)
    else:
        _continue_prompts(name, arguments)


def _continue_prompts(name: str, arguments: "argparse.Namespace") -> None:
    given = vars(arguments)
    beams = {"num_beams": arguments.num_beams or 1}
    penalty = {
        "length_penalty": 1.0 if given["length_penalty"] is None else given["length_penalty"]
    }
    check_flags(_UNUSED_OPTIONS, given | beams, parser().get_default)
    prompts = arguments.prompt or _prompts(arguments.input)
    from bertjax.inference import generate, language_model

    settings = _settings(given | beams | penalty)
    model = language_model.load(name, arguments.precision)
    encoded = generate.encode(model, prompts, settings)
    show = _show_json if arguments.json else _show
    show(model, prompts, encoded, settings)


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser(
        "bertjax generate",
        __doc__,
        EPILOG,
        renamed={
            "--init": "--model",
            "--beams": "--num_beams",
            "--no_repeat_ngram": "--no_repeat_ngram_size",
        },
    )
    parser.add_argument(
        "prompt",
        nargs="*",
        metavar="TEXT",
        help="prompts or sources (default: the lines of --input)",
    )
    _flags.add_model(parser)
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="file with one prompt or source per line (default: standard input)",
    )
    _add_decoding_options(parser.add_argument_group("decoding").add_argument)
    _flags.add_batch_size(parser, 8, "texts")
    _flags.add_precision(parser, "auto")
    _flags.add_json(parser, "print one JSON object per text, in order")
    return parser


def _add_decoding_options(add: Callable[..., object]) -> None:
    add(
        "--max_new_tokens",
        action=constraint_action(PositiveInt),
        default=100,
        metavar="N",
        help="maximum number of tokens per text",
    )
    add(
        "--temperature",
        action=constraint_action(NonNegativeFloat),
        default=0.0,
        metavar="T",
        help="sampling temperature, 1 for the model's distribution, 0 for greedy",
    )
    add(
        "--top_k",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="K",
        help="sample from the K most likely tokens only, 0 for all",
    )
    add(
        "--top_p",
        action=constraint_action(PositiveShare),
        default=1.0,
        metavar="P",
        help="nucleus sampling: from the most likely tokens with total probability P",
    )
    add(
        "--num_beams",
        action=constraint_action(PositiveInt),
        metavar="N",
        help="beam width; 1 disables beam search (default: 1; 4 for encoder-decoders)",
    )
    add(
        "--length_penalty",
        action=constraint_action(Finite),
        metavar="X",
        help="exponent of the length that divides the score of a beam; larger values favour "
        "longer texts (default: 1; 0.6 for encoder-decoders)",
    )
    add(
        "--repetition_penalty",
        action=constraint_action(PositiveFloat),
        default=1.0,
        metavar="X",
        help="penalty of repeated tokens, > 1 makes them less likely",
    )
    add(
        "--no_repeat_ngram_size",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="never repeat an N-gram of tokens, 0 for no limit",
    )
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end a text before this string; may be given several times",
    )
    _flags.add_seed(add, "sampling")


def _prompts(path: str | None) -> list[str]:
    from bertjax.io.lines import read_text_lines

    prompts = [text for _, text in read_text_lines(path)]
    if not prompts:
        raise UserError("no prompt: pass one, or one per line on standard input or in --input")
    return prompts


def _settings(options: dict) -> "Settings":
    from bertjax.decoding.search import TokenSampler
    from bertjax.inference.generate import Settings

    names = ("temperature", "top_k", "top_p", "repetition_penalty", "no_repeat_ngram_size")
    other_names = ("max_new_tokens", "num_beams", "length_penalty", "seed", "batch_size")
    return Settings(
        sampler=TokenSampler(**{name: options[name] for name in names}),
        stop=tuple(options["stop"]),
        **{name: options[name] for name in other_names},
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
    print(clock.report(settings.num_beams > 1), file=sys.stderr)


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
    print(clock.report(settings.num_beams > 1), file=sys.stderr)


def _generate_targets(name: str, arguments: "argparse.Namespace") -> None:
    """Prints the target of each source, and exact matches with references, if there are any."""
    check_flags(_UNUSED_BY_ENCODER_DECODERS, vars(arguments), parser().get_default)
    from bertjax.inference import translate

    num_beams = arguments.num_beams or translate.NUM_BEAMS
    check_flags(
        _UNUSED_OPTIONS[1:], vars(arguments) | {"num_beams": num_beams}, parser().get_default
    )
    penalty = arguments.length_penalty
    translator = translate.load(
        name,
        num_beams=num_beams,
        length_penalty=translate.LENGTH_PENALTY if penalty is None else penalty,
        precision="" if arguments.precision == "auto" else arguments.precision,
    )
    sources = iter(arguments.prompt) if arguments.prompt else _sources(arguments.input)
    start, lines, references, correct = time.monotonic(), 0, 0, 0
    while group := list(itertools.islice(sources, arguments.batch_size * _BATCHES_PER_CHUNK)):
        pairs = [line.split("\t") for line in group]
        targets = translator.translate([pair[0] for pair in pairs], arguments.batch_size)
        for pair, target in zip(pairs, targets, strict=True):
            row = {"source": pair[0], "text": target}
            print(json.dumps(row, ensure_ascii=False) if arguments.json else target)
        sys.stdout.flush()
        known = [(one, pair[1]) for one, pair in zip(targets, pairs, strict=True) if len(pair) == 2]
        if known:
            correct += translate.count_exact_matches(
                *zip(*known, strict=True), translator.tokenizer
            )
        lines, references = lines + len(group), references + len(known)
    print(f"{lines:,} texts in {time.monotonic() - start:.1f} s", file=sys.stderr)
    if references:
        share = correct / references
        print(f"exact match: {correct:,} of {references:,} targets, {share:.1%}", file=sys.stderr)


def _sources(path: str | None) -> Iterator[str]:
    """Yields the checked lines of a file, compressed or not, or of standard input."""
    from bertjax.io.file_kinds import TSV
    from bertjax.io.lines import read_text_lines

    return map(_check_source, read_text_lines(path, tables=(TSV,)))


def _check_source(line: tuple[str, str]) -> str:
    where, text = line
    if not text.strip():
        raise UserError(f"{where}: got an empty source; remove the line")
    if text.count("\t") > 1:
        raise UserError(
            f"{where}: got {text.count(chr(9)) + 1} fields, expected a source, or a source, a tab "
            "and its target; remove the other columns"
        )
    return text


class _Clock:
    """Measures tokens per second, excluding the first token, whose time includes compilation."""

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
