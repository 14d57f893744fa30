"""Named arrays in one safetensors file: written whole or not at all, and refused when they are damaged.

The file's metadata has one entry, "snapgrad", in JSON: the version of this format, what the caller wants to keep beside
the arrays, and a digest over all of it. Equal content gives equal bytes: one entry, because safetensors does not sort
them, and arrays in the order that safetensors chooses, by dtype and name.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from snapgrad import arguments

VERSION = 1  # of the format; files of a later one are refused
ENTRY = "snapgrad"
PART = ".part"  # how the name of an unfinished file ends, which a kill may leave behind
DTYPES = (
    {"bool", "float16", "bfloat16", "float32", "float64", "complex64"}
    | {f"int{bits}" for bits in (8, 16, 32, 64)}
    | {f"uint{bits}" for bits in (8, 16, 32, 64)}
)


def check_path(path: Any) -> None:
    """Refuses what names no file."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise TypeError(f"`path` must be a path, got {arguments.shown(path)}")


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Writes arrays and metadata (anything that JSON can say) to a file, in place of what was there.

    The bytes go to a file beside it, `.NAME.*.part`, which takes its place when all of them are on the disk. Whatever
    happens before that, the file is what it was.
    """
    check_path(path)
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ValueError(f"`path` must be in a folder that exists, got {os.fspath(path)!r}")
    if target.exists() and not target.is_file():  # a folder, or a device, which would be replaced
        raise ValueError(f"`path` must be a file, got {os.fspath(path)!r}")
    # safetensors takes the memory as it lies, so it must lie in order.
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"arrays must be of numbers that safetensors knows, got {array.dtype} in {name!r}")
    kept = json.loads(json.dumps(metadata))  # as it will be read
    about = {"version": VERSION, "digest": _digest(arrays, kept), "metadata": kept}
    content = save(arrays, {ENTRY: json.dumps(about, sort_keys=True)})
    try:
        write_whole(target, content)
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"`path` must be a file that can be written, got {os.fspath(path)!r} ({reason})") from None


def write_whole(target: Path, content: bytes) -> None:
    """Writes a file beside its place and moves it there when all of it is on the disk."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(target.parent)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the metadata of a file that `write_arrays` wrote; anything else is refused in one sentence."""
    check_path(path)
    given = repr(os.fspath(path))
    try:
        if not Path(path).is_file():
            reason = "there is none" if not Path(path).exists() else "it is a folder or a device"
            raise FileNotFoundError(f"`path` must be a file, got {given} ({reason})")
        with open(path, "rb"), safe_open(path, framework="np") as file:  # Python's own errors, if it cannot be opened
            entry = (file.metadata() or {}).get(ENTRY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    except SafetensorError as error:
        raise ValueError(f"`path` must be a whole safetensors file, got {given}, which is damaged or none") from error
    except PermissionError as error:
        raise PermissionError(f"`path` must be a file that can be read, got {given} ({error.strerror})") from None
    if entry is None:
        raise ValueError(
            f"`path` must be a file that snapgrad wrote, got {given}, a safetensors file of another program"
        )
    damaged = f"`path` must be an undamaged file, got {given}, whose content does not fit its digest"
    try:
        about = json.loads(entry)
        version, digest, metadata = about["version"], about["digest"], about["metadata"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(damaged) from None
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"`path` must be a file of format {VERSION} or older, got {given} of format {version}: "
            "a later version of snapgrad wrote it"
        )
    if version != VERSION or digest != _digest(arrays, metadata):
        raise ValueError(damaged)
    return arrays, metadata


def _digest(arrays: Mapping[str, np.ndarray], metadata: Any) -> str:
    content = hashlib.blake2b(digest_size=16)
    described = {name: [arrays[name].dtype.name, list(arrays[name].shape)] for name in sorted(arrays)}
    content.update(json.dumps([VERSION, metadata, described], sort_keys=True).encode())
    for name in sorted(arrays):
        content.update(arrays[name].reshape(-1).view(np.uint8).data)
    return content.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Makes the new name as lasting as the bytes, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
