"""Validation of configs and of command-line options."""
