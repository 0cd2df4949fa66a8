"""Reports: one HTML page with the curves, scores and configs of runs, sweeps and suites."""
