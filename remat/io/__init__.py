"""Reading of untrusted files and atomic writing."""
