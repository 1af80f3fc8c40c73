"""Version of the installed package; ``build_version.py`` derives it from the tag."""

from importlib import metadata

try:
    __version__ = metadata.version("remat")
except metadata.PackageNotFoundError:
    __version__ = "not installed"
