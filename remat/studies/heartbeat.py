"""Heartbeats of a runner, from a thread of their own: a long solve or a slow caller does not delay them."""

from __future__ import annotations

import threading
from contextlib import suppress

from remat.errors import RematError
from remat.studies.store import STALE, Store

#: Heartbeats within the time after which claims expire.
BEATS = 6


class Heartbeat:
    """Keeps claims of cells from expiring while it is open; a context manager.

    Claims that it does not hold expire even if they have its owner: an unreachable database may make a claim and lose
    the answer, so that the runner does not know of it. A heartbeat that fails is skipped, since the next one follows;
    runners report an unreachable database with their own queries.

    Parameters
    ----------
    owner : str
        Name of the runner.
    stale : float
        Seconds without a heartbeat after which claims expire.
    """

    def __init__(self, store: Store, owner: str, stale: float = STALE) -> None:
        self.store, self.owner, self.interval = store, owner, stale / BEATS
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remat-heartbeat", daemon=True)

    def hold(self, digest: str) -> None:
        """Keep the claim of a cell from now on."""
        with self._lock:
            self._held.add(digest)

    def drop(self, digest: str) -> None:
        """Keep the claim of a cell no longer."""
        with self._lock:
            self._held.discard(digest)

    def open(self) -> None:
        """Start the thread. A database in memory has no other runner, and needs none."""
        if self.store.is_shared:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread; one that waits for the database ends on its own."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(self.interval)

    def __enter__(self) -> Heartbeat:
        self.open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            with self._lock:
                held = sorted(self._held)
            with suppress(RematError):
                self.store.beat(self.owner, held)
