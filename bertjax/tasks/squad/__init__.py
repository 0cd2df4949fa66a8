"""Extractive question answering: SQuAD and others in its file format."""
