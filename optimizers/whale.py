"""WHALE: weights and harness in turn (arXiv 2609.00196). ``python -m optimizers.whale``.

A door: the command is `optimizers.commands.optimise`.
The algorithm is `optimizers.run.whale`, its parts `optimizers.weights` and `optimizers.search`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("optimise", "whale")
