"""Pretrain an encoder from text or a prepared corpus; rerun the command to resume."""

import json
import shlex
import sys
from typing import Any

from bertjax.commands import _flags
from bertjax.errors import UserError

GROUP = "Train"

EPILOG = """\
examples:
  bertjax pretrain --config quickstart --workdir runs/quickstart
  bertjax pretrain --config bert:mini --workdir runs/mini \\
      --config.data.corpus=corpora/wiki --config.num_train_steps=100000 --config.data.phases='()'
  bertjax pretrain --config distilbert:tiny --workdir runs/distilbert \\
      --config.objectives.soft_targets.teacher=runs/quickstart

  bertjax pretrain --config roberta:base --init MODEL --workdir runs/domain \\
      --config.data.input="('domain/*.txt',)" --config.num_train_steps=10000 \\
      --config.optimizer.learning_rate=1e-4

--init continues from a run or from a Hugging Face folder: its config.model and tokenizer replace
those of the config; its encoder and the heads of the config's objectives are the initial
parameters. --config.model.FIELD=VALUE changes the number of positions or of layers,
--config.tokenizer.path=DIR the vocabulary.

--config.SECTION.FIELD=VALUE overrides any field of the config. Ctrl-C or SIGTERM finishes the step,
or the batch of an evaluation, and saves a checkpoint; the same command resumes the run, on any
number of devices. A larger --config.num_train_steps extends a finished run.

In the workdir: config.json, metrics.jsonl, checkpoints/STEP, tokenizer/ and, at the end,
summary.json; with --config.tensorboard=True also event files for TensorBoard, in tensorboard/.
"""


def main(argv: list[str]) -> None:
    """Trains, and prints the held-out metrics and the next command."""
    from bertjax.overrides import split_overrides

    rest, overrides = split_overrides(argv)
    arguments = parser().parse_args(rest)
    config = _load_config(arguments, overrides)
    if arguments.print_config:
        _flags.print_config(config)
        return
    _flags.require(arguments, "workdir")
    from bertjax import build
    from bertjax.commands.prepare import progress_display
    from bertjax.errors import Interrupted
    from bertjax.inference.fill_mask import predict_held_out
    from bertjax.runs import pretrain
    from bertjax.runtime import distributed

    build.check(config)
    distributed.connect(arguments.distributed)
    try:
        result = pretrain.pretrain(
            config,
            arguments.workdir,
            log=log_on_first_host,
            progress=progress_display,
            predict=predict_held_out,
        )
    except Interrupted as stop:
        log_on_first_host(f"{stop}; the same command resumes it: {_command(argv)}")
        raise SystemExit(stop.exit_code) from None
    if is_first_host():
        _print_result(result, argv)


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    parser = _flags.Parser("bertjax pretrain", __doc__, EPILOG)
    _flags.add_config(parser, "bert:mini")
    _flags.add_print_config(parser)
    parser.add_argument("--workdir", metavar="DIR", help="folder for all outputs, or gs://...")
    parser.add_argument(
        "--init",
        metavar="MODEL",
        help="start from the parameters of RUN, RUN@STEP, RUN@best or a Hugging Face folder",
    )
    parser.add_argument(
        "--init_optimizer",
        action="store_true",
        help="with --init: also load the optimizer state, from a run with equal parameters",
    )
    parser.add_argument("--distributed", action="store_true", help=_flags.DISTRIBUTED)
    return parser


def _load_config(arguments, overrides, **options):
    """Loads the config of the command line; with --init, with the fields of the other model."""
    from bertjax.config import PRETRAINING, load_config

    if not arguments.init:
        if arguments.init_optimizer:
            raise UserError("--init_optimizer: got no --init, expected one; add --init RUN")
        return load_config(arguments.config, overrides, PRETRAINING, **options)
    from bertjax.runs import initialization

    of_model = [override for override in overrides if override[0].startswith("model.")]
    others = [override for override in overrides if override not in of_model]
    return initialization.with_model(
        load_config(arguments.config, others, PRETRAINING, **options),
        arguments.init,
        of_model,
        optimizer=arguments.init_optimizer,
    )


def _print_result(result, argv: list[str]) -> None:
    """Prints held-out metrics, files and the commands that extend and use the run."""
    from bertjax.config import from_json
    from bertjax.validation.config import objective_modules

    summary, workdir = result.summary, result.workdir
    config = from_json(json.dumps(summary["config"]))
    if not result.num_steps_trained:
        print(f"This run is complete: {summary['steps']:,} steps. Nothing was done.")
    _print_summary(summary, config, workdir)
    print(f"extend it  {_command(extension(argv, config, summary['steps']))}")
    if any(module.generates for module in objective_modules(config).values()):
        generate = ["bertjax", "generate", "--model", workdir, "The first words of a text"]
        print(f"next       {shlex.join(generate)}")
    elif "tokenizer" in config:
        print(
            "next       bertjax finetune --config glue:mrpc,small --init "
            f"{shlex.quote(workdir)} --data GLUE_FOLDER "
            f"--workdir {shlex.quote(f'{workdir}_mrpc')}"
        )


def _command(argv: list[str]) -> str:
    return shlex.join(["bertjax", "pretrain", *argv])


def extension(argv: list[str], config, steps: int) -> list[str]:
    """Returns the command line that trains a complete run for more steps, or twice its budget.

    Args:
      argv: The command line of the run.
      config: Its config.
      steps: Number of additional steps.
    """
    from bertjax import build
    from bertjax.config import flatten
    from bertjax.overrides import split_overrides, with_overrides

    changes: dict[str, Any] = {"num_train_steps": config.num_train_steps + steps}
    if budget := build.run_field(config, "budget_seconds"):
        changes = {"budget_seconds": 2 * budget}
    elif config.data.phases:
        *first, (last, *shape) = config.data.phases
        changes["data.phases"] = (*first, (last + steps, *shape))
    longer = with_overrides(argv, changes)
    rest, overrides = split_overrides(longer)
    before = flatten(config)
    arguments = parser().parse_args(rest)
    after = flatten(_load_config(arguments, overrides, log=lambda _: None))
    # Fields that the config file derives from num_train_steps keep the values of the finished run.
    derived = {n: v for n, v in before.items() if n not in changes and after.get(n) != v}
    return with_overrides(longer, derived)


def _print_summary(summary: dict, config, workdir: str) -> None:
    from bertjax import build

    _print_held_out(summary, config)
    for guess in summary["guesses"]:
        _print_guess(guess)
    goodput = f", goodput {summary['goodput']:.1%}" if "goodput" in summary else ""
    print(
        f"\n{summary['steps']:,} steps, {summary['tokens']:,} tokens, "
        f"{summary['seconds']:.0f} s in training{goodput}\n"
    )
    written = ["summary.json", "metrics.jsonl"]
    written += ["tensorboard/"] if build.run_field(config, "tensorboard") else []
    print(f"metrics    {', '.join(f'{workdir}/{name}' for name in written)}")
    kept = ["checkpoints/", *(["tokenizer/"] if "tokenizer" in config else [])]
    kept = ", ".join(f"{workdir}/{name}" for name in [*kept, "config.json"])
    print(f"model      {kept}")


def _print_held_out(summary: dict, config) -> None:
    """Prints the held-out metrics next to the values of trivial predictors."""
    from bertjax.runs.held_out import summary_rows

    rows = summary_rows(config, summary)
    if rows:
        print(f"\n{'held-out':22}{'this model':>12}   baseline")
    for metric, value, baseline in rows:
        line = f"  {metric.label:20}{_with_unit(value, metric.unit):>12}"
        if baseline is not None:
            line += f"   {_with_unit(baseline, metric.unit)} ({metric.baseline_label})"
        print(line)
    for corpus in summary.get("mixture", ()):
        for metric, value, _ in summary_rows(config, summary, corpus):
            print(f"  {f'{metric.label}, {corpus}':20}{_with_unit(value, metric.unit):>12}")


def _with_unit(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else f"{value:.4f} {unit}".rstrip()


def _print_guess(guess: dict) -> None:
    candidates = ", ".join(f"{token} {share:.0%}" for token, share in guess["candidates"])
    print(f"\n  ... {guess['before']} [MASK] {guess['after']} ...")
    print(f"      {candidates}   (original: {guess['truth']})")


def log_on_first_host(text: str) -> None:
    """Prints a line on standard error, once for all processes of a job."""
    if is_first_host():
        print(text, file=sys.stderr, flush=True)


def is_first_host() -> bool:
    """Whether this process prints for all processes of a job."""
    import jax

    return jax.process_index() == 0
