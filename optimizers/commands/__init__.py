"""What stands behind ``python -m optimizers.…``: flags, errors, interrupts."""
