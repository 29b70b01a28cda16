"""Runs: the algorithm, its plan and schedule, evaluation, display."""
