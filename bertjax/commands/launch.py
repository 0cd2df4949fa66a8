"""Run a command as several processes on this machine."""

import argparse

from bertjax.constraints import PositiveInt, checked
from bertjax.errors import UserError

EPILOG = """\
examples:
  bertjax launch --processes 4 --devices 2 -- \\
      pretrain --config configs/quickstart.py --workdir runs/quickstart
  bertjax launch --processes 2 -- finetune --config configs/glue.py:rte \\
      --init runs/bert --data glue --workdir runs/rte

The processes join through jax.distributed on a free port of this machine.
--devices sets the number of CPU devices of each process; without it each has
the devices that JAX finds. Output lines of all processes but the first start
with the process number. Ctrl-C and SIGTERM are forwarded: all finish the same
step, save and end. If a process fails, the others are stopped and its number is
printed; the same command resumes from the last checkpoint, with any number of
processes.

On clusters the scheduler starts the processes: see tools/launch/, and
--distributed of the verb.
"""

_VERBS = ("pretrain", "finetune")


def main(argv: list[str]) -> None:
    """Starts the processes and waits for them."""
    from bertjax.overrides import split_at_dashes
    from bertjax.runtime import local_processes

    own, words = split_at_dashes(argv)
    arguments = _parser().parse_args(own)
    if not words or words[0] not in _VERBS:
        raise UserError(
            f"command: got {' '.join(words[:1]) or 'none'}, expected `-- VERB ...` "
            f"with a VERB of {', '.join(_VERBS)}"
        )
    if status := local_processes.run(words, arguments.processes, arguments.devices):
        raise SystemExit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bertjax launch",
        usage="bertjax launch [--processes N] [--devices M] -- VERB ...",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--processes",
        action=checked(PositiveInt),
        default=2,
        metavar="N",
        help="number of processes (default: 2)",
    )
    parser.add_argument(
        "--devices",
        action=checked(PositiveInt),
        metavar="M",
        help="CPU devices of each process (default: the devices that JAX finds)",
    )
    return parser
