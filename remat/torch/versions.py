"""The versions of torch that this package is tested with: some names that it needs are private there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from remat.errors import CaptureError

#: As in the extra ``torch`` of this package.
TESTED = SpecifierSet(">=2.13,<2.14")


def check_version() -> None:
    """Refuse to go on without torch, or with a version outside :data:`TESTED`.

    Raises
    ------
    CaptureError
        Naming the version that is installed and those that are tested.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise CaptureError("torch is not installed: pip install 'remat[torch]'", "not-installed") from None
    if not TESTED.contains(installed, prereleases=True):
        raise CaptureError(
            f"torch {installed} is installed, but remat.torch is made for torch{TESTED} only", "torch-version"
        )
