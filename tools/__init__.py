"""Makers of the data that ship with `whale_env`; not part of the wheel."""
