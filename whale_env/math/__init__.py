"""Mathematics: the environment (`env`), problems (`problems`, `generator`), verdicts (`verifier`, `equality`)."""
