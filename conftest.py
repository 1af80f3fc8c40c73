"""What the search for doctests leaves out: modules of extras that are not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["remat/torch/*"]
