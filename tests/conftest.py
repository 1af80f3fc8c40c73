"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure: property tests have no deadline for one example.
settings.register_profile("remat", deadline=None, print_blob=True)
settings.load_profile("remat")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The data folder beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("REMAT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no data folder at {folder} (set REMAT_SHARED)")
    return folder
