"""Fine-tuning on first letters."""

from ml_collections import ConfigDict

from configs import glue


def get_config() -> ConfigDict:
    """The recipe."""
    config = glue.another_task({"name": "first_letter"}, "tiny")
    config.num_train_epochs = 1
    return config
