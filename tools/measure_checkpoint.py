r"""Measures what saving takes from training: a config's own steps, with checkpoints and without.

    python tools/measure_checkpoint.py --config configs/bert.py:base --workdir runs/measured \
        --config.data.batch_size=8 --config.data.phases='()'

A save stops the steps until its arrays are copied; then it is written while they continue, and they
may be slower. Both are counted, in seconds a save, and as a share of the time from one save to the
next with the config's `checkpoint_every`. Prints JSON; what was saved is removed.
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
    """Measures, and prints what came of it."""
    from bertjax.config import load_config, split_overrides

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="config file, as in configs/bert.py:base")
    parser.add_argument("--workdir", required=True, help="where to save: a disk, or gs://...")
    parser.add_argument("--repeats", type=int, default=5, help="saves (default 5)")
    parser.add_argument("--steps", type=int, default=10, help="between saves at least (default 10)")
    rest, overrides = split_overrides(sys.argv[1:])
    arguments = parser.parse_args(rest)
    try:
        config = load_config(arguments.config, overrides)
        print(json.dumps(measured(config, arguments), indent=2))
    except UserError as error:
        sys.exit(f"measure_checkpoint: error: {error}")


def measured(config, arguments: argparse.Namespace) -> dict[str, object]:
    """Medians over the saves, and their share of a run."""
    import jax

    from bertjax.io import storage
    from bertjax.train.checkpoint import folder as checkpoint_folder
    from bertjax.train.checkpoint.folder import Keep
    from bertjax.train.checkpoint.manager import Checkpoints

    train_step, state, batch = made(config)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))

    def step() -> float:
        nonlocal state
        start = time.monotonic()
        state, metrics = train_step(state, batch)
        jax.block_until_ready(metrics)
        return time.monotonic() - start

    step()
    begun, written, alone, beside = [], [], [], []
    folder = storage.to_path(arguments.workdir) / "measured"
    checkpoint_folder.clear(folder)
    with Checkpoints(folder, keep=Keep(latest=1)) as checkpoints:
        for number in range(arguments.repeats):
            alone += [step() for _ in range(arguments.steps)]
            start = time.monotonic()
            checkpoints.save(state, step=number)
            begun.append(time.monotonic() - start)
            while checkpoints.is_writing:
                beside.append(step())
            written.append(time.monotonic() - start)
    checkpoint_folder.clear(folder)
    usual, slower = statistics.median(alone), statistics.mean(beside or [0.0])
    lost = statistics.median(begun) + len(beside) / len(begun) * max(0.0, slower - usual)
    return {
        "config": arguments.config,
        "device": jax.devices()[0].device_kind,
        "parameters": trees.num_parameters(state.params),
        "bytes": size,
        "seconds_per_step": usual,
        "seconds_until_steps_go_on": statistics.median(begun),
        "seconds_until_written": statistics.median(written),
        "seconds_per_step_meanwhile": slower,
        "seconds_lost_per_save": lost,
        "checkpoint_every": config.checkpoint_every,
        "share": lost / (config.checkpoint_every * usual + lost),
    }


def made(config):
    """The step, compiled; the first state; a batch."""
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
