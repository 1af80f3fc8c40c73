"""Cache folders for compiled code."""

import os
from pathlib import Path

import pytest

from remat.runtime.compiled import places


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the user's cache folder; the package is not writable."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    candidates = places.candidates
    monkeypatch.setattr(places, "candidates", lambda: (x for x in candidates() if places.PACKAGE not in x.parents))
    found = places.writable()
    assert found is not None
    return found


def test_user_cache_folder_replaces_an_unwritable_package(folder: Path, tmp_path: Path) -> None:
    assert folder.is_relative_to(tmp_path.resolve())
    assert list(places.readable()) == [folder]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_folders_writable_by_others_are_not_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert places.writable() is None
    assert not list(places.readable())
    folder.chmod(0o700)
    assert places.writable() == folder


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_folders_of_other_users_are_not_used(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    assert places.writable() is None
    assert not list(places.readable())


def test_old_folders_are_swept(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"kernels-x-{number}").mkdir()
        os.utime(tmp_path / f"kernels-x-{number}", (number, number))
    (tmp_path / "kernels-y-0").mkdir()
    places.sweep(tmp_path / "kernels-x-0")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kernels-x-0",
        "kernels-x-4",
        "kernels-x-5",
        "kernels-y-0",
    ]
