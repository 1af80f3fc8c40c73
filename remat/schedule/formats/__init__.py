"""File formats of schedules, including those of other tools."""
