"""One file a verb: flags and printing live only here."""
