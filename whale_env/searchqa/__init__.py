"""Questions on a corpus: the environment (`env`), questions (`questions`) and verdicts (`verifier`, `judge`)."""
