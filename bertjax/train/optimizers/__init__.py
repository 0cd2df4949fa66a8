"""Optimizers by name: `config.optimizer.name = "lamb"` is `lamb.py`."""
