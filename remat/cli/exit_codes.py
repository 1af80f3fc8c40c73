"""Exit codes of the command line."""

#: The last two are those of a process terminated by a signal: Ctrl-C, a closed pipe.
OK, NO, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
