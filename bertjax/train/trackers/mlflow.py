"""MLflow Tracking (https://mlflow.org/docs/latest/ml/tracking): metrics and config of a run.

Its environment variables apply, among them MLFLOW_TRACKING_URI, without which MLflow writes to
`mlflow.db` in the current folder, and MLFLOW_EXPERIMENT_NAME.
"""

import os
import time

from bertjax.errors import UserError
from bertjax.train import tracking
from bertjax.train.hooks import Values

_MAX_PARAMS = 100  # of a request
_MAX_LENGTH = 6000  # of the value of a param


class Tracker(tracking.Tracker):
    """A run of MLflow, with the config fields as its params."""

    def open(self, run_id: str) -> str:
        import mlflow

        try:
            self._client = mlflow.MlflowClient()
            if run_id:
                self._client.update_run(run_id, status="RUNNING")
                return run_id
            return self._create()
        except mlflow.exceptions.MlflowException as error:
            raise UserError(
                f"config.trackers: mlflow: {str(error).splitlines()[0]}; check "
                "MLFLOW_TRACKING_URI and its credentials"
            ) from error

    def _create(self) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", tracking.PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run_id = self._client.create_run(number, run_name=self.run_name).info.run_id
        params = [Param(name, str(value)[:_MAX_LENGTH]) for name, value in self.fields.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
        return run_id

    def record(self, step: int, values: Values) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self.state_dict()["id"], metrics=metrics)

    def end(self) -> None:
        self._client.set_terminated(self.state_dict()["id"])
