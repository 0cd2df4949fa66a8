"""What is learned: one file an objective, each defining `Objective`."""
