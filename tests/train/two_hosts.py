"""One of two hosts of a run with parameters sharded over both: PORT RANK WORKDIR STEPS BATCHES.

BATCHES is the number of batches of an evaluation, after every third step and the last one; 0 for
no evaluation.
"""

import json
import pathlib
import sys
import time

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")


def main(port: str, rank: str, workdir: str, steps: str, eval_batches: str) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    run(pathlib.Path(workdir), int(steps), int(eval_batches))


def run(workdir: pathlib.Path, steps: int, eval_batches: int) -> None:
    import jax.numpy as jnp

    from bertjax.runtime.interrupt import Interrupt
    from bertjax.train.checkpoint.folder import Retention
    from bertjax.train.checkpoint.manager import Checkpoints
    from bertjax.train.hooks import Evaluate, SaveCheckpoints
    from bertjax.train.loop import train

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=auto)
    spread, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    shardings = State({"w": spread}, everywhere)
    create = jax.jit(lambda: State({"w": jnp.arange(8.0)}, jnp.int32(0)), out_shardings=shardings)
    target = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        jax.eval_shape(create),
        shardings,
    )
    checkpoints = Checkpoints(workdir, keep=Retention(latest=2))
    restored = checkpoints.resume(target)
    state = restored[0] if restored else create()
    first = int(state.step)

    @jax.jit
    def train_step(state, batch):
        params = jax.tree.map(lambda x: x * 1.5 + batch, state.params)
        return State(params, state.step + 1), {"loss": params["w"].sum()}

    @jax.jit
    def eval_step(params, batch):
        return (params["w"] * batch).sum()

    evaluated = []

    def evaluate(state):
        print(json.dumps({"evaluating": int(state.step)}), flush=True)
        for _, batch in interrupt.stoppable(Batches(0, eval_batches)):
            evaluated.append(float(eval_step(state.params, batch)))
        return {}

    with Interrupt() as interrupt:
        hooks = [SaveCheckpoints([5], checkpoints)]
        if eval_batches:
            hooks.insert(0, Evaluate(3, evaluate))
        batches = Batches(first, steps)
        print(json.dumps({"first": first}), flush=True)
        options = {"interrupt": interrupt, "restored": restored[1].hooks if restored else {}}
        state = train(state, batches, train_step, hooks, num_train_steps=steps, **options)
    result = {"step": int(state.step), "stopped": interrupt.stopped, "evaluated": len(evaluated)}
    print(json.dumps(result), flush=True)
    sys.exit(interrupt.exit_code if interrupt.stopped else 0)


class State(dict):
    def __init__(self, params, step):
        super().__init__(params=params, step=step)

    params = property(lambda self: self["params"])
    step = property(lambda self: self["step"])


jax.tree_util.register_pytree_with_keys(
    State,
    lambda state: ([(jax.tree_util.DictKey(k), state[k]) for k in ("params", "step")], None),
    lambda _, leaves: State(*leaves),
)


class Batches:
    wait_seconds = 0.0

    def __init__(self, start, stop):
        self._steps = range(start, stop)

    def __iter__(self):
        for step in self._steps:
            time.sleep(0.02)
            yield step, float(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
