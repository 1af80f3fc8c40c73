"""The same from the shell."""
