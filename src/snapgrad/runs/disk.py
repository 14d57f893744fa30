"""Text files of a run: written whole or line by line, and read with a sentence that names a damaged one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snapgrad.files import write_whole

Record = dict[str, Any]


def write(path: Path, content: str) -> None:
    """Writes a file whole or not at all."""
    try:
        write_whole(path, content.encode())
    except OSError as error:
        raise named(error, path) from None


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file, on the disk before it returns."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise named(error, path) from None


def read_json(path: Path, required: Sequence[str]) -> Record:
    """The JSON object in a file; it must have the required entries."""
    return parse_json(path.read_bytes(), required, str(path))


def parse_json(text: bytes, required: Sequence[str], source: str) -> Record:
    """A JSON object with the required entries; `source` says where it stands."""
    try:
        found = json.loads(text)
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{source} must be JSON, got something else ({error}): the file is damaged") from None
    if not isinstance(found, dict):
        raise ValueError(f"{source} must be a JSON object, got {type(found).__name__}: the file is damaged")
    for name in required:
        if name not in found:
            raise ValueError(f"{source} must have {name!r}, got only {', '.join(found) or 'nothing'}: it is damaged")
    return found


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Holds a file that only one process at a time can hold, where the system can; refuses in these words."""
    with open(path, "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            pass
        except BlockingIOError:
            raise ValueError(refusal) from None
        yield


def named(error: OSError, path: Path) -> OSError:
    """The same error with the name of its file, which the system leaves out where a write fails."""
    return OSError(error.errno, error.strerror, str(path))


def sentence(error: OSError | ValueError) -> str:
    """What went wrong: with a file without the number, else in the error's own words."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return f"cannot read or write{'' if error.filename is None else f' {str(error.filename)!r}'}: {reason}"
