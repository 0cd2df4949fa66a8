"""bertjax: pretraining of language encoders in JAX and Flax, TPU first."""

__version__ = "0.1.0"
