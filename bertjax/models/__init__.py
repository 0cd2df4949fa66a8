"""Models: one file for each distinct computation, which defines `Model`."""
