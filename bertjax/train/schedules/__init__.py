"""Learning rate schedules by name: `config.optimizer.schedule = "cosine"` is `cosine.py`."""
