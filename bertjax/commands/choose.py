"""Answer multiple-choice questions with a causal LM, without training."""

import argparse
import json

from bertjax.constraints import NonNegativeInt, PositiveInt, Seed, checked
from bertjax.validation.unused_options import Unread, check_flags

EPILOG = """\
examples:
  bertjax choose --init runs/gpt2 --input questions.jsonl
  bertjax choose --init runs/gpt2 --input dev.jsonl --shots 4 \\
      --shots_from train.jsonl

--input has one question per line:
  {"question": "Water is", "choices": ["wet", "dry"], "answer": 0}

The predicted choice is the most likely continuation of the question: by log
probability (accuracy), and by log probability per byte (accuracy_per_byte),
which does not favour short choices. With --shots N, each question is preceded
by N answered examples, sampled anew for each question from --shots_from, or
from the other questions.
"""

_UNREAD = (
    Unread(
        ("shots_from", "seed"),
        "shots",
        lambda shots: not shots,
        "an integer >= 1, since without it no example is sampled",
        "set --shots, or leave it out",
    ),
)


def main(argv: list[str]) -> None:
    """Scores the choices of each question and prints the accuracy."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    check_flags(_UNREAD, vars(arguments), parser.get_default)
    from bertjax.inference import language_model, multiple_choice
    from bertjax.io import copies, storage

    if arguments.out:
        storage.check_file(storage.to_path(arguments.out))
    questions = multiple_choice.read_questions(arguments.input)
    examples = (
        multiple_choice.read_questions(arguments.shots_from) if arguments.shots_from else questions
    )
    before = multiple_choice.sample_shots(questions, examples, arguments.shots, arguments.seed)
    model = language_model.load(arguments.init, arguments.precision)
    scores = multiple_choice.score_choices(
        model, questions, before, batch_size=arguments.batch_size
    )
    found = multiple_choice.compute_accuracies(questions, scores) | {"questions": len(questions)}
    found |= {"shots": arguments.shots}
    if arguments.out:
        rows = [json.dumps({"log_probabilities": row}) for row in scores]
        with copies.upload_file(arguments.out) as file:
            file.write_text("\n".join([*rows, ""]), encoding="utf-8")
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<18} {value if isinstance(value, int) else f'{value:.4f}':>10}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax choose",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--init",
        required=True,
        metavar="RUN",
        help="a causal LM: RUN (newest checkpoint), RUN@STEP or RUN@best",
    )
    add("--input", required=True, metavar="FILE", help="questions as JSON lines")
    add(
        "--shots",
        action=checked(NonNegativeInt),
        default=0,
        metavar="N",
        help="answered examples before each question (default: 0)",
    )
    add(
        "--shots_from",
        metavar="FILE",
        default="",
        help="file of the answered examples (default: --input)",
    )
    add(
        "--seed",
        action=checked(Seed),
        default=0,
        metavar="N",
        help="seed of sampling the examples (default: 0)",
    )
    add(
        "--batch_size",
        action=checked(PositiveInt),
        default=8,
        metavar="N",
        help="choices per batch (default: 8)",
    )
    add(
        "--precision",
        default="auto",
        help="auto, float32, bfloat16 ..., as config.model.precision (default: auto)",
    )
    add(
        "--out",
        metavar="FILE",
        default="",
        help="also write the log probabilities of all choices, as JSON lines",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    return parser
