"""Weights & Biases (https://docs.wandb.ai): metrics and config of a run.

Its environment variables apply, among them WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline, with
which `wandb sync` uploads the files in `wandb/` of the workdir later.
"""

import os
import uuid

from bertjax.errors import UserError
from bertjax.train import tracking
from bertjax.train.hooks import Values


class Tracker(tracking.Tracker):
    """A run of Weights & Biases."""

    def open(self, run_id: str) -> str:
        import wandb

        self.workdir.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", tracking.PROJECT),
                dir=self.workdir,
                id=run_id or uuid.uuid4().hex[:8],
                resume="allow",
                name=self.run_name,
                config=dict(self.fields),
                # Standard output belongs to the command.
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise UserError(
                f"config.trackers: wandb: {str(error).splitlines()[0]}; log in with `wandb login`, "
                "or set WANDB_MODE=offline"
            ) from error
        return self._run.id

    def record(self, step: int, values: Values) -> None:
        self._run.log(dict(values), step=step)

    def end(self) -> None:
        self._run.finish()
