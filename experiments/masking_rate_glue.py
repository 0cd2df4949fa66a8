"""Question: the effect of the masking rates of `experiments/masking_rate.py` on a GLUE task.

    bertjax sweep run --config experiments/masking_rate_glue.py:rte --data glue --seeds 3 \
        --workdir runs/masking_rate_rte

Fine-tunes each of the six encoders in `runs/masking_rate/`, and the same model with random
parameters, with --seeds seeds each. The dev score is the mean of the task's metrics.
"""

from ml_collections import ConfigDict

from bertjax.sweeps.grid import Point
from configs import glue

TASKS = glue.TASKS
ENCODERS = "runs/masking_rate"


def get_config(task: str) -> ConfigDict:
    """Returns the recipe for small encoders, with the sequence length of their pretraining."""
    config = glue.get_config(f"{task},small")
    config.data.max_seq_length, config.data.padded_lengths = 64, (16, 32, 48, 64)
    return config


def get_runs() -> list[Point]:
    """Returns a run per encoder, with its name."""
    trained = [f"masked_lm_prob={rate},seed={seed}" for rate in (0.15, 0.3, 0.4) for seed in (0, 1)]
    return [
        *({"name": name, "init": f"{ENCODERS}/{name}"} for name in trained),
        {"name": "untrained", "init": f"random:{ENCODERS}/{trained[0]}"},
    ]
