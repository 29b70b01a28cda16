"""Proposers without a model."""
