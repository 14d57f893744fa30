"""JAX's compilation cache on disk, for a learner's own programs: the second start of a process is then quick.

It is on only while a learner is made or compiles, so that nothing else of the process is written down. A cache that the
process has set up itself (`jax_compilation_cache_dir`) is used as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

FOLDER = "SNAPGRAD_CACHE"  # the environment variable that names the folder, or is "off"
PLACE = "jax_compilation_cache_dir"
WHILE_ON = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}


def folder() -> Path | None:
    """Where programs are kept: $SNAPGRAD_CACHE, or the platform's place for caches; None for "off" or where none is."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return None if given == "off" else Path(given)
    places = {"win32": "LOCALAPPDATA"}
    base = os.environ.get(places.get(sys.platform, "XDG_CACHE_HOME"))
    try:
        home = Path(base) if base else Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError:  # a user without a home, as in some containers
        return None
    return home / "snapgrad" / "compiled"


@contextmanager
def on_disk() -> Iterator[None]:
    """Looks programs up on disk, and keeps new ones there, for as long as the context lasts."""
    place = folder()
    if place is None or getattr(jax.config, PLACE) is not None or not _can_write(place):
        yield
        return
    wanted = {PLACE: str(place), **WHILE_ON}
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX would go on with the folder that it has opened


def _can_write(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)
