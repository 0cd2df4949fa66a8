"""Extractive question answering of a table: question, context and answer in each row."""
