"""Options that several commands share: the same names, metavars and help everywhere."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from bertjax import catalog
from bertjax.constraints import NonNegativeInt, PositiveInt, Seed, constraint_action
from bertjax.errors import UserError
from bertjax.validation.unused_options import UnusedOptions

if TYPE_CHECKING:
    from ml_collections import ConfigDict

MODEL = "RUN (newest checkpoint), RUN@STEP, RUN@best, or a Hugging Face folder"
DISTRIBUTED = "connect to the processes that Slurm, GKE or Cloud TPU started on the other hosts"

TFDS_DATA_DIR = UnusedOptions(
    ("tfds_data_dir",),
    "input",
    lambda inputs: not any(name.startswith("tfds:") for name in inputs),
    "a tfds:NAME:SPLIT among them, since it does not apply to files",
    "leave it out",
)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of the epilog and appends "(default: X)" to the help of every option."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        value = action.default
        is_shown = isinstance(value, int | float | str) and value not in ("", argparse.SUPPRESS)
        if "(default" in text or value is False or not is_shown:
            return text
        return f"{text} (default: %(default)s)"


def architectures() -> str:
    """The architectures of Hugging Face, for the text of `--help`."""
    return textwrap.fill(f"{', '.join(catalog.names('huggingface/architectures'))}.", 80)


class Parser(argparse.ArgumentParser):
    """Parser of a command. Its errors are one line, and an old spelling names the new one.

    Args:
      prog: As in "bertjax embed".
      description: First lines of the help; in the modules of commands their docstring.
      epilog: Last lines of the help: examples and explanations.
      renamed: Removed options -> their replacements.
      **options: Those of `argparse.ArgumentParser`.
    """

    def __init__(
        self,
        prog: str,
        description: str | None = None,
        epilog: str = "",
        renamed: Mapping[str, str] | None = None,
        **options,
    ):
        options.setdefault("formatter_class", _Formatter)
        super().__init__(prog=prog, description=description, epilog=epilog, **options)
        self._renamed = renamed or {}

    def parse_known_args(self, args: Sequence[str] | None = None, namespace=None):
        """Parses the arguments; see `argparse.ArgumentParser.parse_known_args`.

        Raises:
          UserError: an option has another name now.
        """
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if self._subparsers and not word.startswith("-"):
                break  # the options of another parser follow
            if new := self._renamed.get(word.partition("=")[0]):
                raise UserError(f"{word.partition('=')[0]} is now {new}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises the error as a `UserError`."""
        raise UserError(f"{message} (see {self.prog} --help)")

    def add_commands(self) -> argparse._SubParsersAction:
        """Adds a required positional argument that selects one of several commands."""
        return self.add_subparsers(dest="command", metavar="COMMAND", required=True)


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    description: str,
    epilog: str,
    run: Callable[..., None],
    renamed: Mapping[str, str] | None = None,
) -> Parser:
    """Adds one of several commands; `run` and `parser` become attributes of its arguments."""
    parser = commands.add_parser(
        name, help=description, description=description, epilog=epilog, renamed=renamed
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_model(parser: Parser, text: str = MODEL) -> None:
    """Adds --model: a trained model that is read."""
    parser.add_argument("--model", required=True, metavar="MODEL", help=text)


def add_config(parser: Parser, example: str) -> None:
    """Adds --config: a config by name or file, which shells complete."""
    action = parser.add_argument(
        "--config",
        required=True,
        metavar="CONFIG",
        help=f"such as {example} (see bertjax configs), or a file",
    )
    action.completer = lambda **_: catalog.config_files()


def add_print_config(parser: Parser) -> None:
    """Adds --print_config, with which no other option is required."""
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print every field with its value and meaning, and exit",
    )


def print_config(config: "ConfigDict") -> None:
    """Prints the fields of a config."""
    from bertjax.validation import describe

    print("\n".join(describe.lines(config)))


def require(arguments: "argparse.Namespace", *names: str) -> None:
    """Checks options that are required unless --print_config is given.

    Raises:
      UserError: naming the missing options.
    """
    if missing := [f"--{name}" for name in names if getattr(arguments, name) is None]:
        raise UserError(f"the following arguments are required: {', '.join(missing)}")


def refuse_input_with_texts(file: str | None, texts: Sequence[str]) -> None:
    """Raises `UserError` if both a file of --input and texts are given."""
    if texts and file is not None:
        raise UserError(f"--input: got {file}, expected none with a TEXT; leave one out")


def add_batch_size(parser: Parser, default: int, unit: str) -> None:
    """Adds --batch_size, counted in a unit such as "texts"."""
    parser.add_argument(
        "--batch_size",
        action=constraint_action(PositiveInt),
        default=default,
        metavar="N",
        help=f"{unit} per batch",
    )


def add_pooling(parser: Parser, default: str = "mean", none: str = "") -> None:
    """Adds --pooling of the tokens of a text; "" stands for that of the model.

    Args:
      parser: The parser.
      default: Pooling of a model that specifies none.
      none: Meaning of `none`, if that is a choice.
    """
    choices = ["none", "mean", "weighted", "cls"] if none else ["mean", "weighted", "cls"]
    parser.add_argument(
        "--pooling",
        default="",
        choices=choices,
        help=f"{none}mean over a sequence, special tokens included; mean weighted by position; or "
        f"the vector of [CLS] (default: that of the model, or {default})",
    )


def add_prompt(parser: Parser) -> None:
    """Adds --prompt and --prompt_name, a text that is put before every text."""
    parser.add_argument(
        "--prompt", metavar="TEXT", help="put before every text (default: see --prompt_name)"
    )
    parser.add_argument(
        "--prompt_name",
        default="",
        metavar="NAME",
        help="prompt of the model, such as query or document (default: that of a "
        "sentence-transformers folder with a default prompt, or none)",
    )


def add_dim(parser: Parser) -> None:
    """Adds --dim, the size to which vectors are truncated; 0 stands for all of their values."""
    parser.add_argument(
        "--dim",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="keep the first N values of every vector, such as one of the matryoshka_dims of "
        "training (default: all)",
    )


def add_retrieval_prompts(parser: Parser) -> None:
    """Adds --query_prompt and --document_prompt."""
    for name, texts in {"query_prompt": "every query", "document_prompt": "every document"}.items():
        help_text = f"put before {texts} (default: that of the model, or none)"
        parser.add_argument(f"--{name}", metavar="TEXT", help=help_text)


def add_max_length(parser: Parser) -> None:
    """Adds --max_length of a sequence; 0 stands for that of the model."""
    parser.add_argument(
        "--max_length",
        action=constraint_action(NonNegativeInt),
        default=0,
        metavar="N",
        help="maximum length in tokens, special tokens included (default: that of the model, "
        "or 512)",
    )


def add_precision(parser: Parser, default: str = "") -> None:
    """Adds --precision; "" means the precision of the run."""
    parser.add_argument(
        "--precision",
        default=default,
        metavar="NAME",
        help="auto, float32, bfloat16 ..., as config.model.precision "
        f"(default: {default or 'that of the run'})",
    )


def add_json(parser: Parser, text: str = "print one JSON object instead of a table") -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help=text)


def add_seed(add: Callable[..., object], use: str) -> None:
    """Adds --seed, the seed of a use such as "sampling"."""
    add("--seed", action=constraint_action(Seed), default=0, metavar="N", help=f"seed of {use}")


def add_seeds(parser: Parser, default: int | None, unit: str) -> None:
    """Adds --seeds, the number of fine-tunings of a unit such as "task"."""
    parser.add_argument(
        "--seeds",
        action=constraint_action(PositiveInt),
        default=default,
        metavar="N",
        help=f"number of seeds of each {unit}",
    )


def add_parallel(parser: Parser) -> None:
    """Adds --parallel."""
    parser.add_argument(
        "--parallel",
        action=constraint_action(PositiveInt),
        default=1,
        metavar="N",
        help="number of runs at a time",
    )


def add_texts(parser: Parser, text: str) -> None:
    """Adds --input with globs of text in any format, and --format and --text_field."""
    parser.add_argument("--input", nargs="+", required=True, metavar="GLOB", help=text)
    parser.add_argument(
        "--format",
        default="auto",
        metavar="NAME",
        help=f"file format: {', '.join(catalog.names('corpus/formats'))} (default: auto, detected "
        "per file)",
    )
    parser.add_argument(
        "--text_field",
        default="",
        metavar="NAME",
        help="field of JSON lines, column of a table, or feature of tfds:, with the text "
        "(default: text)",
    )


def add_reading(parser: Parser) -> None:
    """Adds --errors and --tfds_data_dir, which `TFDS_DATA_DIR` checks."""
    parser.add_argument(
        "--errors",
        default="strict",
        choices=["strict", "replace"],
        help="bytes that are not UTF-8: stop with an error, or replace by U+FFFD",
    )
    parser.add_argument(
        "--tfds_data_dir",
        metavar="DIR",
        help="data folder of TensorFlow Datasets for tfds: inputs (default: that of TFDS)",
    )


def add_case(parser: Parser, cased: str, uncased: str) -> None:
    """Adds --cased and --uncased, which set `lowercase`; None if neither is given."""
    case = parser.add_mutually_exclusive_group()
    case.add_argument("--cased", dest="lowercase", action="store_false", help=cased)
    case.add_argument("--uncased", dest="lowercase", action="store_true", help=uncased)
    parser.set_defaults(lowercase=None)
