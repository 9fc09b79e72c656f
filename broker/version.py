# Which Weir this is: its version, and whether its hot modules are compiled.
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from broker.mqtt import packets

VERSION: Final = "0.1.0"  # the only place: pyproject.toml takes it from here


def form() -> str:
    """ "compiled" or "interpreted". One hot module answers for all: they are compiled together or not at all."""
    return "compiled" if (packets.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)) else "interpreted"


def banner() -> str:
    """What `weir --version` prints."""
    return f"weir {VERSION} ({form()}, Python {platform.python_version()})"
