"""Downstream tasks: one folder each, with head, dataset, files and predictions."""
