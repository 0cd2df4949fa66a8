"""A mean mixer that counts tokens: every part of this run is a plug-in."""

from ml_collections import ConfigDict

from configs import common


def get_config() -> ConfigDict:
    """The recipe."""
    config = ConfigDict(common.run(num_train_steps=2))
    config.best_metric = "held_out/token_count/loss"
    config.model = ConfigDict({"name": "mean_mixer", "vocab_size": 64, "hidden_size": 8})
    config.model.initializer_range = 0.5
    config.tokenizer = common.tokenizer(vocab_size=64)
    config.data = common.data(format="first-tokens", pair="none")
    config.data.max_seq_length, config.data.batch_size = 16, 8
    config.data.validation_fraction = 0.1
    config.objectives = ConfigDict({"token_count": {"weight": 1.0}})
    config.optimizer = ConfigDict(
        {
            "name": "sign_momentum",
            "learning_rate": 1e-3,
            "schedule": "half_life",
            "warmup_steps": 0,
            "max_grad_norm": 1.0,
        }
    )
    config.mesh = common.mesh()
    return config
