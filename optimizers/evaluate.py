"""Evaluation: mean@k on held-out tasks with a bootstrap interval. ``python -m optimizers.evaluate``.

A door: the command is `optimizers.commands.evaluate`.
What it means is `optimizers.run.evaluation`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("evaluate", "main")
