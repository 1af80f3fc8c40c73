"""Scoreboard of best known schedules: run methods, update, check, write the table.

    python benchmarks/scoreboard.py run --suite quick --methods bounds,greedy,annealing --seconds 10
    python benchmarks/scoreboard.py update layered-100 my.schedule.json --method "my solver"
    python benchmarks/scoreboard.py check
    python benchmarks/scoreboard.py table

See benchmarks/scoreboard/README.md.
"""

import sys

from scoreboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
