"""Scoreboard: best known schedules and bounds of a fixed set of instances, with their methods."""
