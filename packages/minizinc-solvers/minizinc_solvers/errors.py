"""Error that the programs report in one line."""


class FlatZincError(Exception):
    """A FlatZinc file cannot be read, or a solver cannot express it; the message is one line."""
