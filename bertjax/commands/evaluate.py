"""Evaluate without training: language models, embeddings, classifiers, predictions."""

import json
import sys
from typing import Any

from bertjax.commands import _embedding_evaluations, _flags, _task_evaluations
from bertjax.constraints import NonNegativeInt, constraint_action
from bertjax.validation.unused_options import UnusedOptions, check_flags

GROUP = "Evaluate"
COMMANDS = ("perplexity", "choices", "blimp", "ewok", "sts", "retrieval", "table", "predictions")

_PERPLEXITY = """\
examples:
  bertjax evaluate perplexity --model runs/gpt2 --input 'held_out/*'
  bertjax evaluate perplexity --model runs/gpt2 --input wiki.test.txt --stride 256 --json

--input is as for bertjax prepare: globs of text, JSONL or WikiExtractor files, tfds:NAME:SPLIT.
Each document is evaluated in windows of --max_length tokens with a stride of --stride; every token
is predicted once, with the preceding tokens of its window as context. A smaller stride gives more
context per token and takes longer. --max_length should not exceed the length of the training
sequences, even if the model has more positions; for an imported model all its positions count as
trained.

Perplexities are comparable only between models with the same tokenizer. Bits per byte are
comparable between lossless tokenizers: cased ones with unknown_share (the fraction of [UNK]) 0.
"""

_CHOICES = """\
examples:
  bertjax evaluate choices --model runs/gpt2 --input questions.jsonl
  bertjax evaluate choices --model runs/gpt2 --input dev.jsonl --num_fewshot 4 \\
      --fewshot_input train.jsonl

--input has one question per line:
  {"question": "Water is", "choices": ["wet", "dry"], "answer": 0}

The predicted choice is the most likely continuation of the question: by log
probability (accuracy), and by log probability per byte (accuracy_per_byte),
which does not favour short choices. A masked model computes the sum over the
tokens of the choice of the log probability of each, masked, given all others;
--within_word as for bertjax evaluate blimp. With --num_fewshot N, each question is
preceded by N answered examples, sampled anew for each question from
--fewshot_input, or from the other questions. With --output, the same command
resumes after an interruption.
"""

_BLIMP = """\
examples:
  bertjax evaluate blimp --model runs/bert --input blimp.jsonl.gz
  bertjax evaluate blimp --model runs/gpt2 --input blimp.jsonl.gz --json
  bertjax evaluate blimp --model runs/bert --input blimp.jsonl.gz --within_word

--input has one pair per line, as released with BLiMP (Warstadt et al. 2020):
  {"sentence_good": "Cats eat.", "sentence_bad": "Cats eats.", "UID": "agreement"}

A pair is correct if the model finds the first sentence more likely. A causal
model computes its log likelihood, a masked one its pseudo-log-likelihood: the
sum over all tokens of the log probability of each, masked, given the others
(Salazar et al. 2020). --within_word masks the later tokens of the same word as
well, so that the end of a word does not reveal its beginning (Kauf and Ivanova
2023). Prints the accuracy of each paradigm, and their mean. With --output, the
same command resumes after an interruption.
"""

_EWOK = """\
examples:
  bertjax evaluate ewok --model runs/gpt2 --input ewok-core-1.0/*.csv
  bertjax evaluate ewok --model runs/bert --input ewok.jsonl --within_word --json

--input are tables (.csv, .tsv, .jsonl, .parquet, .arrow), as released with EWoK
(Ivanova et al. 2024), with a header or fields Domain, Context1, Context2,
Target1, Target2. Target1 fits Context1, and Target2 fits Context2.

The model is correct about a target if it is more likely after its own context
than after the other one: the two comparisons of an item count half each, and so
does a tie. A causal model computes the log probability of the tokens of the
target, a masked one that of each of these tokens, masked, given all others;
--within_word as for bertjax evaluate blimp. Prints the accuracy of each domain,
that over all items, which the publication reports, and the mean over domains.
With --output, the same command resumes after an interruption.
"""

_UNUSED_OPTIONS = (
    UnusedOptions(
        ("fewshot_input", "seed"),
        "num_fewshot",
        lambda count: not count,
        "an integer >= 1, since without it no example is sampled",
        "set --num_fewshot, or leave it out",
    ),
)


def main(argv: list[str]) -> None:
    """Runs the selected evaluation and prints its results."""
    arguments = parser().parse_args(argv)
    _print(arguments.run(arguments), arguments.json)


def _perplexity(arguments) -> dict[str, float]:
    from bertjax.corpus import sources
    from bertjax.inference import evaluation

    if note := sources.describe_repeated(arguments.input):
        print(note, file=sys.stderr)
    names = ("format", "text_field", "max_length", "stride", "batch_size", "precision")
    options = {name: getattr(arguments, name) for name in names}
    found = evaluation.perplexity(arguments.model, arguments.input, **options)
    if found["unknown_share"]:
        print(
            f"note: {found['unknown_share']:.2%} of the tokens are [UNK]: their characters are not "
            "predicted, so bits per byte are too low to compare with those of a lossless tokenizer",
            file=sys.stderr,
        )
    return found


def _choices(arguments) -> dict[str, float]:
    check_flags(_UNUSED_OPTIONS, vars(arguments), arguments.parser.get_default)
    from bertjax.inference import evaluation
    from bertjax.runtime.progress import progress_display

    names = ("num_fewshot", "fewshot_input", "seed", "within_word", "batch_size", "precision")
    options = {name: getattr(arguments, name) for name in (*names, "output")}
    with progress_display() as display:
        return evaluation.choices(
            arguments.model, arguments.input, progress=display.update, **options
        )


def _compare(arguments) -> dict[str, float]:
    """Compares likelihoods: `blimp` or `ewok`."""
    from bertjax.inference import evaluation
    from bertjax.runtime.progress import progress_display

    names = ("within_word", "batch_size", "precision", "output")
    options = {name: getattr(arguments, name) for name in names}
    with progress_display() as display:
        return evaluation.evaluate(
            arguments.command, arguments.model, arguments.input, progress=display.update, **options
        )


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name:<{width}}  {shown:>15}")


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax evaluate", __doc__)
    commands = parser.add_commands()
    _add_perplexity(commands)
    _add_choices(commands)
    _add_blimp(commands)
    _add_ewok(commands)
    _embedding_evaluations.add_sts(commands)
    _embedding_evaluations.add_retrieval(commands)
    _task_evaluations.add_table(commands)
    _task_evaluations.add_predictions(commands)
    return parser


def _add_perplexity(commands) -> None:
    parser = _flags.add_command(
        commands,
        "perplexity",
        "Measure the perplexity and bits per byte of a causal language model on text.",
        _PERPLEXITY,
        _perplexity,
        renamed={"--init": "--model", "--length": "--max_length"},
    )
    _flags.add_model(parser)
    _flags.add_texts(parser, "files, python-docs or tfds:NAME:SPLIT")
    parser.add_argument(
        "--max_length",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="tokens per window (default: length of the training sequences)",
    )
    parser.add_argument(
        "--stride",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="tokens between the starts of windows (default: half of --max_length)",
    )
    _flags.add_batch_size(parser, 8, "windows")
    _flags.add_precision(parser, "auto")
    _flags.add_json(parser)


def _add_choices(commands) -> None:
    parser = _flags.add_command(
        commands,
        "choices",
        "Answer multiple-choice questions with a language model, without training.",
        _CHOICES,
        _choices,
        renamed={
            "--init": "--model",
            "--shots": "--num_fewshot",
            "--shots_from": "--fewshot_input",
            "--out": "--output",
        },
    )
    add = parser.add_argument
    _flags.add_model(parser)
    add("--input", required=True, metavar="FILE", help="questions as JSON lines")
    add(
        "--num_fewshot",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="answered examples before each question",
    )
    add(
        "--fewshot_input",
        metavar="FILE",
        default="",
        help="file of the answered examples (default: --input)",
    )
    _flags.add_seed(add, "sampling the examples")
    _add_within_word(add)
    _flags.add_batch_size(parser, 32, "sequences")
    _flags.add_precision(parser, "auto")
    _add_output(add, "all choices")
    _flags.add_json(parser)


def _add_blimp(commands) -> None:
    parser = _flags.add_command(
        commands,
        "blimp",
        "Compare the likelihood of the sentences of minimal pairs, without training.",
        _BLIMP,
        _compare,
    )
    _flags.add_model(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="pairs as JSON lines")
    _add_comparison(parser, "both sentences")


def _add_ewok(commands) -> None:
    parser = _flags.add_command(
        commands,
        "ewok",
        "Compare the likelihood of sentences after two contexts, without training.",
        _EWOK,
        _compare,
    )
    _flags.add_model(parser)
    parser.add_argument("--input", required=True, nargs="+", metavar="FILE", help="tables of items")
    _add_comparison(parser, "both targets after each context")


def _add_comparison(parser, scored: str) -> None:
    _add_within_word(parser.add_argument)
    _flags.add_batch_size(parser, 128, "sequences")
    _flags.add_precision(parser, "auto")
    _add_output(parser.add_argument, scored)
    _flags.add_json(parser)


def _add_within_word(add) -> None:
    add(
        "--within_word",
        action="store_true",
        help="mask the later tokens of a word too; for masked language models",
    )


def _add_output(add, scored: str) -> None:
    help_text = f"also write the log probabilities of {scored}, as JSON lines"
    add("--output", metavar="FILE", default="", help=help_text)
