"""Extractive question answering: SQuAD and data sets in its file format."""
