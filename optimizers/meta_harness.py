"""Meta-Harness, the harness phases alone: candidates are written and scored. ``python -m optimizers.meta_harness``.

A door: the command is `optimizers.commands.optimise`.
The phase is `optimizers.search.meta_harness`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("optimise", "meta_harness")
