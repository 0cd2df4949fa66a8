"""Wall-clock budgets: the learning rate follows the time spent, and the run ends when it is spent.

A budget of hours compares recipes and machines at equal cost, as of Geiping & Goldstein 2023. The
clock of the hosts is an input of every step, so such a run cannot be repeated bit for bit.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from bertjax.interfaces import Batch, extent
from bertjax.train.hooks import Hook, Run, Values
from bertjax.train.schedule import SCHEDULE_STEP
from bertjax.train.sharding import batch_sharding


class Budget(Hook):
    """Ends a run when its seconds of training, over all starts, are spent.

    These are the seconds in the loop without compilation and hooks, such as evaluation, so that
    the budget does not depend on their number.

    The schedule is evaluated at num_train_steps * spent / seconds in place of the step: it has
    reached its end when the budget is spent. The latest clock of all hosts is part of the batch,
    and the step returns it, so that all hosts have the same learning rate and end at the same step.
    As metrics are read after further steps were dispatched, the run ends a few steps later.

    Args:
      seconds: The budget; 0 for none.
      num_train_steps: Steps of the schedule, and the maximum of the run.
      mesh: The devices.
    """

    def __init__(self, seconds: float, num_train_steps: int, mesh: Mesh):
        self._seconds, self._num_train_steps = seconds, num_train_steps
        own = jax.process_index()
        self._num_local = sum(device.process_index == own for device in mesh.devices.flat)
        devices = Mesh(mesh.devices.reshape(-1), ("devices",))
        self._by_device = NamedSharding(devices, PartitionSpec("devices"))
        self._latest = jax.jit(_latest, static_argnums=1, out_shardings=batch_sharding(mesh))

    @property
    def spent(self) -> float:
        """Seconds of training over all starts of the run."""
        elapsed = time.monotonic() - self._start
        return self._before + elapsed - self._run.compile_seconds - self._run.hook_seconds

    def on_train_begin(self, run: Run, state: Any, restored: Mapping[str, Any]) -> None:
        self._run = run
        self._before, self._start = restored.get("seconds", 0.0), time.monotonic()
        if self._seconds and self._before >= self._seconds:
            # It was stopped in its last evaluation, or killed before its summary was written.
            run.num_train_steps = min(run.num_train_steps, run.first_step)

    def stamp(self, batch: Batch) -> Batch:
        """Adds the position in the schedule to a batch on the devices."""
        if not self._seconds:
            return batch
        position = self._num_train_steps * min(self.spent / self._seconds, 1.0)
        # One value per device: hosts that share the rows of a batch have different clocks.
        local = np.full(self._num_local, position, np.float32)
        positions = jax.make_array_from_process_local_data(self._by_device, local)
        return {**batch, SCHEDULE_STEP: self._latest(positions, extent(batch)[0])}

    def on_metrics(self, step: int, values: Values) -> None:
        if not self._seconds:
            return
        self._run.seconds_left = max(self._seconds - self.spent, 0.0)
        if values[SCHEDULE_STEP] >= self._num_train_steps:
            # The step after the last one that was dispatched is the same on every host.
            self._run.num_train_steps = min(self._run.num_train_steps, self._run.step + 1)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.spent} if self._seconds else {}


def _latest(positions: Float[Array, " devices"], batch_size: int) -> Float[Array, " B"]:
    """The latest position of all devices, for every row of a batch."""
    return jnp.full(batch_size, positions.max())
