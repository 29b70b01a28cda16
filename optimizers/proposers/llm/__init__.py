"""Proposers that ask a language model, or an agent's command line."""
