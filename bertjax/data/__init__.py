"""Training examples and the input pipeline, in numpy; never imports jax."""
