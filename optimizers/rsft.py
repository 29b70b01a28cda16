"""RSFT, the weight phases alone: sample, keep what the verifier accepts, learn it. ``python -m optimizers.rsft``.

A door: the command is `optimizers.commands.optimise`.
The phase is `optimizers.weights.rsft`.
"""

from optimizers.commands.interrupts import enter

if __name__ == "__main__":
    enter("optimise", "rsft")
