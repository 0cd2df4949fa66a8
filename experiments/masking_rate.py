"""Question: how much text to hide from BERT-tiny in two minutes, 15, 30 or 40% of its tokens.

    bertjax sweep --config experiments/masking_rate.py --workdir runs/masking_rate

BERT hides 15% (Devlin et al. 2019, section 3.1). Wettig et al. 2023 find 40% better at the size of
BERT-large, and the best rate lower for smaller models: more masks are more to learn from in each
step, and less text to learn it from. Two seeds of each rate, on the text of the quickstart.

The held-out loss is that of a run's own masks, so the rows of different rates do not compare: the
more is hidden, the harder it is. What the rates are worth is asked on a task, from each of these
runs: `experiments/masking_rate_glue.py`.
"""

from ml_collections import ConfigDict

from bertjax.sweeps.grid import Point, product
from configs import quickstart


def get_config() -> ConfigDict:
    """The recipe that all runs share."""
    return quickstart.get_config()


def get_runs() -> list[Point]:
    """Three rates with two seeds each."""
    return product({"objectives.mlm.masked_lm_prob": (0.15, 0.3, 0.4), "seed": (0, 1)})
