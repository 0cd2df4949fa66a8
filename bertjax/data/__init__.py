"""From text to batches of numpy arrays; never imports jax."""
