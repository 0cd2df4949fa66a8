"""Flax modules and functions with plain fields, independent of config objects."""
