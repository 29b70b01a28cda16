"""Chess puzzles: the environment (`env`), the puzzles (`puzzles`) and their rules (`verifier`)."""
