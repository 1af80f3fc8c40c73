"""File formats of schedules, other tools' among them."""
