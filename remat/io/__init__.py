"""Reading untrusted files and writing safely."""
