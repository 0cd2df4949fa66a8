"""Token classification of a table: a tag for each word, or labelled spans of a text."""
