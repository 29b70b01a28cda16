"""Mathematical equality, as the worker processes of `whale_env.math.verifier` decide it."""
