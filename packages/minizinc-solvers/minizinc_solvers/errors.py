"""The error that the programs report in one line."""


class FlatZincError(Exception):
    """A FlatZinc file cannot be read, or a solver cannot express what it says; the message is one line."""
