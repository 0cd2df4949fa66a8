"""Checkpoints: save, verify, keep, restore, and load into other runs."""
