"""Formats of text files: one file per format, each of which defines `FORMAT`."""
