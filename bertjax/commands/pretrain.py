"""Pretrain an encoder from text or a prepared corpus; the same command resumes it."""

import argparse
import shlex
import sys
from typing import Any

EPILOG = """\
examples:
  bertjax pretrain --config configs/quickstart.py --workdir runs/quickstart
  bertjax pretrain --config configs/bert.py:mini --workdir runs/mini \\
      --config.data.corpus=corpora/wiki --config.num_train_steps=100000 --config.data.phases='()'
  bertjax pretrain --config configs/distilbert.py:tiny --workdir runs/distilbert \\
      --config.objectives.soft_targets.teacher=runs/quickstart

Any field of the config is set with --config.SECTION.FIELD=VALUE. Ctrl-C or SIGTERM finishes the
step, saves and stops; the same command continues from there, on any number of devices. A finished
run is extended with a larger --config.num_train_steps.

In the workdir: config.json, metrics.jsonl, tensorboard/, checkpoints/STEP, tokenizer/ and, at the
end, summary.json.
"""

DISTRIBUTED = "join the processes that Slurm, GKE or Cloud TPU have started on all hosts"

_PREDICTIONS = {
    "mlm": "MLM",
    "sbo": "SBO",
    "permutation_lm": "PLM",
    "causal_lm": "LM",
    "seq2seq": "target",
    "span_corruption": "span",
    "infilling": "text",
    "mass": "MASS",
    "bidirectional_lm": "BiLM",
    "unified_lm": "LM",
}
"""Objectives that predict tokens, which word frequencies can be asked for too."""


def main(argv: list[str]) -> None:
    """Trains, and prints the held-out metrics and the next command."""
    from bertjax.config import PRETRAINING, load_config, split_overrides

    rest, overrides = split_overrides(argv)
    arguments = _parser().parse_args(rest)
    config = load_config(arguments.config, overrides, PRETRAINING)
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
        _print_result(result, config, argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax pretrain",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="config file, as in configs/bert.py:mini")
    parser.add_argument(
        "--workdir", required=True, help="folder for all that comes out, or gs://..."
    )
    parser.add_argument("--distributed", action="store_true", help=DISTRIBUTED)
    return parser


def _print_result(result, config, argv: list[str]) -> None:
    """Prints held-out metrics, files and the commands that extend and use the run."""
    summary, workdir = result.summary, result.workdir
    if not result.num_steps_trained:
        print(f"This run is complete: {summary['steps']:,} steps. Nothing was done.")
    _print_summary(summary, workdir)
    print(f"extend it  {_command(extension(argv, config, summary['steps']))}")
    if "causal_lm_loss" in summary:
        generate = ["bertjax", "generate", "--init", workdir, "The first words of a text"]
        print(f"next       {shlex.join(generate)}")
    elif "tokenizer" in config:
        print(
            "next       bertjax finetune --config configs/glue.py:mrpc,small --init "
            f"{shlex.quote(workdir)} --data GLUE_FOLDER "
            f"--workdir {shlex.quote(f'{workdir}_mrpc')}"
        )


def _command(argv: list[str]) -> str:
    return shlex.join(["bertjax", "pretrain", *argv])


def extension(argv: list[str], config, steps: int) -> list[str]:
    """The command line that trains a complete run for more steps.

    Args:
      argv: The command line of the run.
      config: Its config.
      steps: How many more.
    """
    from bertjax.config import flatten, load_config
    from bertjax.overrides import split_overrides, with_overrides

    changes: dict[str, Any] = {"num_train_steps": config.num_train_steps + steps}
    if config.data.phases:
        *first, (last, *shape) = config.data.phases
        changes["data.phases"] = (*first, (last + steps, *shape))
    longer = with_overrides(argv, changes)
    rest, overrides = split_overrides(longer)
    before = flatten(config)
    after = flatten(load_config(_parser().parse_args(rest).config, overrides))
    # Fields that the config file derives from the number of steps stay as they were.
    derived = {n: v for n, v in before.items() if n not in changes and after.get(n) != v}
    return with_overrides(longer, derived)


def _print_summary(summary: dict, workdir: str) -> None:
    if "unigram_loss" in summary:
        for objective, name in _PREDICTIONS.items():
            if f"{objective}_loss" in summary:
                _print_scores(summary, objective, name)
    if "rtd_loss" in summary:
        _print_detection(summary)
    if "soft_targets_agreement" in summary:
        agreement = summary["soft_targets_agreement"]
        print(f"  as its teacher  {agreement:10.1%}   of all predictions")
    if "layer_matching_loss" in summary:
        _print_matching(summary)
    if "image_class_accuracy" in summary:
        print(f"\nheld-out images\n  accuracy        {summary['image_class_accuracy']:10.1%}")
    for guess in summary["guesses"]:
        _print_guess(guess)
    goodput = f", goodput {summary['goodput']:.1%}" if "goodput" in summary else ""
    print(
        f"\n{summary['steps']:,} steps, {summary['tokens']:,} tokens, "
        f"{summary['seconds']:.0f} s in training{goodput}\n"
    )
    print(f"figures    {workdir}/summary.json, {workdir}/metrics.jsonl, {workdir}/tensorboard/")
    kept = ["checkpoints/", *(["tokenizer/"] if "tokenizer" in summary["config"] else [])]
    kept = ", ".join(f"{workdir}/{name}" for name in [*kept, "config.json"])
    print(f"model      {kept}")


def _print_scores(summary: dict, objective: str, name: str) -> None:
    loss = summary.get(f"{objective}_text_loss", summary[f"{objective}_loss"])
    accuracy = summary[f"{objective}_accuracy"]
    gain = summary["unigram_loss"] - loss
    print("\nheld-out text     this model   word frequencies alone")
    print(
        f"  {name} loss        {loss:10.3f}   {summary['unigram_loss']:.3f} nats: "
        f"{abs(gain):.2f} {'better' if gain > 0 else 'worse'}"
    )
    print(f"  {name} accuracy    {accuracy:10.1%}   {summary['unigram_accuracy']:.1%}")
    if "sentence_pair_accuracy" in summary:
        print(f"  pair accuracy   {summary['sentence_pair_accuracy']:10.1%}   50.0%")


def _print_detection(summary: dict) -> None:
    import math

    share = summary["rtd_replaced"]
    chances = [chance for chance in (share, 1 - share) if chance]
    entropy = -sum(chance * math.log(chance) for chance in chances)
    print("\nheld-out text     this model   the share of replaced tokens alone")
    print(f"  RTD loss        {summary['rtd_loss']:10.3f}   {entropy:.3f} nats")
    print(f"  RTD accuracy    {summary['rtd_accuracy']:10.1%}   {max(chances):.1%}")
    print(f"  replaced, found {summary['rtd_found']:10.1%}   of {share:.1%} of all tokens")
    if "unigram_loss" in summary:
        print(
            f"  generator loss  {summary['generator_loss']:10.3f}   "
            f"{summary['unigram_loss']:.3f} nats: word frequencies alone"
        )


def _print_matching(summary: dict) -> None:
    print("\nheld-out text     mean squared distance from the teacher, summed over layers")
    for name, what in (
        ("embedding", "embeddings"),
        ("hidden", "hidden states"),
        ("attention", "attention"),
    ):
        print(f"  {what:15} {summary[f'layer_matching_{name}_error']:10.4f}")


def _print_guess(guess: dict) -> None:
    candidates = ", ".join(f"{token} {share:.0%}" for token, share in guess["candidates"])
    print(f"\n  ... {guess['before']} [MASK] {guess['after']} ...")
    print(f"      {candidates}   (it was: {guess['truth']})")


def log_on_first_host(text: str) -> None:
    """Prints a line on standard error, once for all processes of a job."""
    if is_first_host():
        print(text, file=sys.stderr, flush=True)


def is_first_host() -> bool:
    """Whether this process prints for all processes of a job."""
    import jax

    return jax.process_index() == 0
