"""The SuperGLUE benchmark: files, metrics and submissions of all tasks; tasks of text pairs."""
