"""Tasks of one or two sentences: GLUE and others in its file format."""
