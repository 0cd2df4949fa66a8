"""One run of pretraining or fine-tuning, from its config to its results."""
