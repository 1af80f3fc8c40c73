"""solve(): methods, incumbents, progress and results."""
