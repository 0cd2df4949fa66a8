r"""Measures the cost of checkpointing: training steps of a config with and without saves.

    python tools/measure_checkpoint.py --config configs/bert.py:base --workdir runs/measured \
        --config.data.batch_size=8 --config.data.phases='()'

A save blocks the training steps until its arrays are copied; it is then written in the background,
and steps may be slower meanwhile. Reports the sum of both in seconds per save, and as a share of
the training time with the config's `checkpoint_every`. Prints JSON; the checkpoints are removed.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from bertjax.errors import UserError
from bertjax.train.checkpoint import trees


def main() -> None:
    """Runs the measurement and prints the results."""
    from bertjax.config import load_config, split_overrides

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="config file, such as configs/bert.py:base")
    parser.add_argument(
        "--workdir", required=True, help="folder for checkpoints: a path or gs://..."
    )
    parser.add_argument("--repeats", type=int, default=5, help="number of saves (default 5)")
    parser.add_argument(
        "--steps", type=int, default=10, help="steps between saves, at least (default 10)"
    )
    rest, overrides = split_overrides(sys.argv[1:])
    arguments = parser.parse_args(rest)
    try:
        config = load_config(arguments.config, overrides)
        print(json.dumps(measure(config, arguments), indent=2))
    except UserError as error:
        sys.exit(f"measure_checkpoint: error: {error}")


def measure(config, arguments: argparse.Namespace) -> dict[str, object]:
    """Medians over the saves, and the share of training time they take."""
    import jax

    from bertjax.io import storage
    from bertjax.train.checkpoint import folder as checkpoint_folder
    from bertjax.train.checkpoint.folder import Retention
    from bertjax.train.checkpoint.manager import Checkpoints

    train_step, state, batch = build_step(config)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    def step() -> float:
        nonlocal state
        start = time.monotonic()
        state, metrics = train_step(state, batch)
        jax.block_until_ready(metrics)
        return time.monotonic() - start

    step()
    blocked, written, alone, overlapped = [], [], [], []
    folder = storage.to_path(arguments.workdir) / "measured"
    checkpoint_folder.clear(folder)
    with Checkpoints(folder, keep=Retention(latest=1)) as checkpoints:
        for number in range(arguments.repeats):
            alone += [step() for _ in range(arguments.steps)]
            start = time.monotonic()
            checkpoints.save(state, step=number)
            blocked.append(time.monotonic() - start)
            while checkpoints.is_writing:
                overlapped.append(step())
            written.append(time.monotonic() - start)
    checkpoint_folder.clear(folder)
    usual, slower = statistics.median(alone), statistics.mean(overlapped or [0.0])
    lost = statistics.median(blocked)
    lost += len(overlapped) / len(blocked) * max(0.0, slower - usual)
    return {
        "config": arguments.config,
        "device": jax.devices()[0].device_kind,
        "parameters": trees.num_parameters(state.params),
        "bytes": size,
        "seconds_per_step": usual,
        "seconds_blocked": statistics.median(blocked),
        "seconds_until_written": statistics.median(written),
        "seconds_per_step_while_writing": slower,
        "seconds_lost_per_save": lost,
        "checkpoint_every": config.checkpoint_every,
        "share": lost / (config.checkpoint_every * usual + lost),
    }


def build_step(config):
    """Returns the compiled training step, the initial state and a dummy batch."""
    from bertjax import build
    from bertjax.profiling import dummy
    from bertjax.train.sharding import to_global

    phase = build.phases(config)[-1]
    mesh = build.make_mesh(config, [phase])
    trainer, rows = dummy.build_trainer(config, phase, mesh)
    state, batch = trainer.create_state(), to_global(rows, mesh)
    return trainer.train_step.compile(state, batch), state, batch


if __name__ == "__main__":
    main()
