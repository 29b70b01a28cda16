"""Best-of-N: what selection gains from noise alone. ``python -m optimizers.controls``.

A door: the command is `optimizers.commands.controls`.
How it is computed is `optimizers.search.best_of`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("controls", "main")
