"""Pure layers: jax and flax, plain fields, no config object."""
