"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The data folder beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("REMAT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no data folder at {folder} (set REMAT_SHARED)")
    return folder
