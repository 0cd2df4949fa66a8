"""Many runs: sweeps of configs, the GLUE suite, feature-based NER; one scheduler for all."""
