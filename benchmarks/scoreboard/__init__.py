"""The scoreboard: best known schedules and bounds of a fixed set of instances, and who found them."""
