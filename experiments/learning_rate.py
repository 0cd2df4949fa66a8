"""Question: which peak rate and warmup suit BERT-tiny in two minutes of training.

    bertjax sweep --config experiments/learning_rate.py --workdir runs/learning_rate --parallel 2

Draws at random instead of a grid (Bergstra & Bengio 2012): of two fields of which one matters more,
twelve draws try twelve values of each, where a grid of twelve tries three or four. The first run is
the recipe of `configs/quickstart.py` as it is.
"""

from ml_collections import ConfigDict

from bertjax.sweeps.grid import Point, draws, integers, log_uniform
from configs import quickstart


def get_config() -> ConfigDict:
    """The recipe that all runs share."""
    return quickstart.get_config()


def get_runs() -> list[Point]:
    """The recipe, and twelve draws."""
    table = {
        "optimizer.learning_rate": log_uniform(3e-4, 3e-2),
        "optimizer.warmup_steps": integers(0, 300),
    }
    return [{"name": "quickstart"}, *draws(12, table, seed=0)]
