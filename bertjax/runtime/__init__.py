"""Processes, hosts, devices, signals and the compilation cache."""
