"""Run a command as several processes: on this machine, or on a cluster."""

import os
import pathlib
import sys

import bertjax
from bertjax.commands import _flags
from bertjax.constraints import PositiveInt, constraint_action
from bertjax.errors import UserError

GROUP = "Scale"
COMMANDS = ("local", "slurm", "gke", "tpu", "ssh")
SCRIPTS = COMMANDS[1:]
"""Shell scripts in `bertjax/launchers/`: each documents its options in its first comment."""

_LOCAL = """\
examples:
  bertjax launch local --processes 4 --devices 2 -- \\
      pretrain --config quickstart --workdir runs/quickstart
  bertjax launch local --processes 2 -- finetune --config glue:rte \\
      --init runs/bert --data glue --workdir runs/rte

The processes join through jax.distributed on a free port of this machine.
--devices sets the number of CPU devices of each process; without it each has
the devices that JAX finds. Output lines of all processes but the first start
with the process number. Ctrl-C and SIGTERM are forwarded: all finish the same
step or evaluation batch, save and end. If a process fails, the others are stopped and its number is
printed; the same command resumes from the last checkpoint, with any number of
processes.
"""

_VERBS = ("pretrain", "finetune")


def main(argv: list[str]) -> None:
    """Starts the processes and waits for them, or replaces this process by a cluster's script."""
    if argv and argv[0] in SCRIPTS and not {"-h", "--help"} & set(argv):
        sys.stdout.flush()
        # Not BERTJAX_PYTHON: jobs inherit it, and tools/environment would install for it anew.
        environment = os.environ | {"BERTJAX_LAUNCH_PYTHON": sys.executable}
        os.execvpe("bash", ["bash", str(_script(argv[0])), *argv[1:]], environment)
    from bertjax.overrides import split_at_dashes
    from bertjax.runtime import local_processes

    own, words = split_at_dashes(argv)
    arguments = parser().parse_args(own)
    if not words or words[0] not in _VERBS:
        raise UserError(
            f"command: got {' '.join(words[:1]) or 'none'}, expected `-- VERB ...` "
            f"with a VERB of {', '.join(_VERBS)}"
        )
    if status := local_processes.run(words, arguments.processes, arguments.devices):
        raise SystemExit(status)


def parser() -> _flags.Parser:
    """Returns the parser of the command line."""
    now_local = dict.fromkeys(("--processes", "--devices"), "an option of bertjax launch local")
    parser = _flags.Parser("bertjax launch", __doc__, renamed=now_local)
    commands = parser.add_commands()
    local = _flags.add_command(
        commands,
        "local",
        "Run a command as several processes on this machine.",
        _LOCAL,
        main,
    )
    local.usage = "bertjax launch local [--processes N] [--devices M] -- VERB ..."
    local.add_argument(
        "--processes",
        action=constraint_action(PositiveInt),
        default=2,
        metavar="N",
        help="number of processes",
    )
    local.add_argument(
        "--devices",
        action=constraint_action(PositiveInt),
        metavar="M",
        help="CPU devices of each process (default: the devices that JAX finds)",
    )
    for name in SCRIPTS:
        description, _, epilog = _comment(name).partition("\n\n")
        script = _flags.add_command(commands, name, description, epilog, main)
        script.usage = f"bertjax launch {name} OPTIONS -- VERB ..."
    return parser


def _script(name: str) -> pathlib.Path:
    return pathlib.Path(bertjax.__file__).parent / "launchers" / name


def _comment(name: str) -> str:
    """Returns the comment at the top of a script."""
    lines = _script(name).read_text(encoding="utf-8").splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end])
