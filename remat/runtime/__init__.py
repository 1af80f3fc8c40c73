"""Runtime services for the whole package: imports on first use, checked options, available resources."""
