"""A whole small run, as a program that tests start, interrupt, kill and restart."""

import argparse
import functools
import json
import pathlib
import sys
import time
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.errors import UserError
from bertjax.runs.workdir import claim
from bertjax.runtime.interrupt import Interrupt
from bertjax.train.checkpoint.folder import Retention
from bertjax.train.checkpoint.manager import Checkpoints
from bertjax.train.checkpoint.trees import fingerprint
from bertjax.train.hooks import Evaluate, SaveCheckpoints, StopWhenNotFinite
from bertjax.train.loop import train
from bertjax.train.report import Report, Work
from bertjax.train.writers import Display, MetricsFile, TensorBoard

OPTIMIZER = optax.adam(0.03)
HELD_OUT_BATCHES = range(1_000_000, 1_000_004)


@flax.struct.dataclass
class State:
    step: jax.Array
    params: Any
    opt_state: Any
    carry: Any
    skipped: jax.Array
    skipped_in_a_row: jax.Array


def create(width: int = 7) -> State:
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "encoder": {"dense": {"kernel": jax.random.normal(keys[0], (5, width))}},
        "head": {"kernel": jax.random.normal(keys[1], (width, 3)), "unused": jnp.zeros((0, 3))},
    }
    zeros = [jnp.zeros((), jnp.int32) for _ in range(3)]
    return State(zeros[0], params, OPTIMIZER.init(params), None, *zeros[1:])


def batch_of(step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    inputs = generator.normal(size=(11, 5)).astype(np.float32)
    return {"inputs": inputs, "labels": np.sin(inputs[:, :3]) + inputs[:, 2:]}


def loss_of(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    hidden = jnp.tanh(batch["inputs"] @ params["encoder"]["dense"]["kernel"])
    return jnp.mean((hidden @ params["head"]["kernel"] - batch["labels"]) ** 2)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state: State, batch: dict[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
    loss, gradient = jax.value_and_grad(loss_of)(state.params, batch)
    finite = jnp.isfinite(loss)
    updates, opt_state = OPTIMIZER.update(gradient, state.opt_state)
    new = optax.apply_updates(state.params, updates), opt_state
    params, opt_state = jax.tree.map(
        lambda after, before: jnp.where(finite, after, before), new, (state.params, state.opt_state)
    )
    skipped = 1 - finite.astype(jnp.int32)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    state = State(state.step + 1, params, opt_state, None, state.skipped + skipped, in_a_row)
    return state, {"loss": loss, "learning_rate": jnp.float32(0.03), "skipped": skipped}


class Batches:
    """Batches from a step on; batches of the steps in `poison` are not finite."""

    def __init__(self, start: int, stop: int, *, pause: float = 0.0, poison: tuple[int, ...] = ()):
        self.wait_seconds = 0.0
        self._range, self._pause, self._poison = range(start, stop), pause, poison

    def __iter__(self):
        for step in self._range:
            time.sleep(self._pause)
            self.wait_seconds += self._pause
            batch = batch_of(step)
            if step in self._poison:
                batch["inputs"][0, 0] = np.nan
            yield step, batch


def hooks_for(
    workdir: pathlib.Path,
    checkpoints: Checkpoints,
    interrupt: Interrupt,
    options: argparse.Namespace,
) -> list:
    return [
        Display(),
        MetricsFile(workdir),
        *([TensorBoard(workdir)] if options.tensorboard else []),
        Report(options.log_every, lambda step: Work(tokens=11, flops=1000), 1e9),
        StopWhenNotFinite(3),
        Evaluate(options.eval_every, functools.partial(held_out, interrupt)),
        SaveCheckpoints([options.checkpoint_every], checkpoints),
    ]


def held_out(interrupt: Interrupt, state: State) -> dict[str, float]:
    batches = map(batch_of, interrupt.stoppable(HELD_OUT_BATCHES))
    losses = [float(loss_of(state.params, batch)) for batch in batches]
    return {"held_out/loss": sum(losses) / len(losses)}


def run(workdir: pathlib.Path, options: argparse.Namespace) -> tuple[State, Interrupt]:
    """Train like a training command."""
    state, restored = create(), {}
    with claim(workdir, {"num_train_steps": options.steps, "model": {"width": 7}}):
        checkpoints = Checkpoints(
            workdir,
            keep=Retention(latest=options.keep, metric="held_out/loss"),
            provenance={"corpus": options.corpus},
        )
        restored = checkpoints.resume(jax.eval_shape(create))
        if restored:
            state, record = restored
            restored = record.hooks
        poison = tuple(range(*options.poison)) if options.poison else ()
        batches = Batches(int(state.step), options.steps, pause=options.pause, poison=poison)
        with Interrupt() as interrupt:
            state = train(
                state,
                batches,
                train_step,
                hooks_for(workdir, checkpoints, interrupt, options),
                num_train_steps=options.steps,
                interrupt=interrupt,
                restored=restored,
            )
    return state, interrupt


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--log_every", type=int, default=3)
    parser.add_argument("--eval_every", type=int, default=10)
    parser.add_argument("--checkpoint_every", type=int, default=5)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--corpus", default="a" * 64)
    parser.add_argument("--poison", type=int, nargs=2)
    parser.add_argument("--tensorboard", action="store_true")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    try:
        state, interrupt = run(options.workdir, options)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(
        json.dumps(
            {"step": int(state.step), "sha256": fingerprint((state.params, state.opt_state))}
        )
    )
    if interrupt.stopped:
        raise SystemExit(interrupt.exit_code)


if __name__ == "__main__":
    main()
