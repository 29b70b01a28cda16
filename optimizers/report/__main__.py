"""Writes a run's report.html. ``python -m optimizers.report runs/mine``.

A door: the command is `optimizers.commands.report`. What the page shows is `optimizers.report.page`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("report", "main")
