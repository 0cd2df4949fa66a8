"""Forward passes: one file a distinct computation, each defining `Model`."""
