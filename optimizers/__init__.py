"""Optimisers over (weights, harness) pairs: RSFT, Meta-Harness, and WHALE, which alternates the two."""
