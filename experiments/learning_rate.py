"""Question: the best peak learning rate and warmup for two minutes of training BERT-tiny.

    bertjax sweep run --config experiments/learning_rate.py --workdir runs/learning_rate \
        --parallel 2

Random search instead of a grid (Bergstra & Bengio 2012): if one of two fields matters more, twelve
random samples try twelve values of it, where a grid of twelve tries three or four. The first run is
the unchanged recipe of `configs/quickstart.py`.
"""

from ml_collections import ConfigDict

from bertjax.sweeps.grid import Point, integers, log_uniform, random_search
from configs import quickstart


def get_config() -> ConfigDict:
    """Returns the config that the runs change."""
    return quickstart.get_config()


def get_runs() -> list[Point]:
    """Returns the unchanged recipe and twelve random samples."""
    table = {
        "optimizer.learning_rate": log_uniform(3e-4, 3e-2),
        "optimizer.warmup_steps": integers(0, 300),
    }
    return [{"name": "quickstart"}, *random_search(12, table, seed=0)]
