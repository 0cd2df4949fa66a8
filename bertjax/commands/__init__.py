"""Command-line verbs: one file each, with flags and printing only."""
