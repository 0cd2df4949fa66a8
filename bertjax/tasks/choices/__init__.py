"""Multiple choice of a table: a question, its choices and the right one in each row."""
