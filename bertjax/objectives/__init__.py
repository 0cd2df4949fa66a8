"""Training objectives: one file each, which defines `Objective`."""
