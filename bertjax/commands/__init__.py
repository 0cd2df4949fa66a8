"""Commands of `bertjax`: one file per verb, with options and printing only."""
