"""Studies: instances × problems × methods × seeds, solved by many processes into a database."""
