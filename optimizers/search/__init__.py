"""The harness phase: candidates are admitted, scored and selected."""
