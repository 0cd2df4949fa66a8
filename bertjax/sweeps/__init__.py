"""Many runs: grids, child processes, progress and tables."""
