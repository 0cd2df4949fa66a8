"""Classification and regression of one or two texts: the examples are the rows of a table."""
