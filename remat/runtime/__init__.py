"""Services that every part of the package may use: imports on first use, checked options."""
