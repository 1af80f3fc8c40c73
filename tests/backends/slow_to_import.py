"""A module that takes its time."""

import time

time.sleep(3)
