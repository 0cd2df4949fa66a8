"""Question: the best masking rate for two minutes of training BERT-tiny: 15, 30 or 40%.

    bertjax sweep run --config experiments/masking_rate.py --workdir runs/masking_rate

BERT masks 15% (Devlin et al. 2019, section 3.1). Wettig et al. 2023 find 40% better at the size of
BERT-large, and a lower optimum for smaller models: a higher rate gives more predictions per step,
but less context for each. Two seeds per rate, on the text of the quickstart.

The held-out loss is computed with the masking rate of the run, so it is not comparable between
rates: more masks are a harder task. The encoders are compared by fine-tuning instead:
`experiments/masking_rate_glue.py`.
"""

from ml_collections import ConfigDict

from bertjax.sweeps.grid import Point, product
from configs import quickstart


def get_config() -> ConfigDict:
    """Returns the config that the runs change."""
    return quickstart.get_config()


def get_runs() -> list[Point]:
    """Returns three masking rates with two seeds each."""
    return product({"objectives.mlm.masked_lm_prob": (0.15, 0.3, 0.4), "seed": (0, 1)})
