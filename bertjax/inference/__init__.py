"""Use of trained models: features, masked tokens, generation, predictions."""
