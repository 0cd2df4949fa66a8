"""Experiment trackers: one file for each, selected by `config.trackers`."""
