"""Layers in JAX and Flax with plain fields; they know no config object."""
