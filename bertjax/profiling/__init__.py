"""Ahead-of-time plans, HLO analysis, memory traffic and collectives."""
