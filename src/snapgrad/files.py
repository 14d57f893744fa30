"""Named arrays in one safetensors file: written whole or not at all, and refused when they are damaged.

The file's metadata has one entry, "snapgrad", in JSON: the version of this format, what the caller wants to keep beside
the arrays, and a digest over all of it. Equal content gives equal bytes: arrays stand by the size of their numbers, so
that each is aligned, and by name. An array may be written piece by piece, and is read where it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from snapgrad import arguments

VERSION = 1  # of the format; files of a later one are refused
ENTRY = "snapgrad"
PART = ".part"  # how the name of an unfinished file ends, which a kill may leave behind
# What safetensors calls NumPy's dtypes.
DTYPES = (
    {"bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64"}
    | {f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)}
    | {f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)}
)
ALIGNMENT = 8  # of the data, in bytes


class Sliced(Protocol):
    """An array that is not in memory as a whole: slices of it that follow one another in row-major order."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __iter__(self) -> Iterator[np.ndarray]: ...


Array = np.ndarray | Sliced


def check_path(path: Any) -> None:
    """Refuses what names no file."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise TypeError(f"`path` must be a path, got {arguments.shown(path)}")


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> None:
    """Writes arrays and metadata (anything that JSON can say) to a file, in place of what was there.

    Slices are taken once, in the order of the arrays' names.

    The bytes go to a file beside it, `.NAME.*.part`, which takes its place when all of them are on the disk. Whatever
    happens before that, the file is what it was.
    """
    check_path(path)
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ValueError(f"`path` must be in a folder that exists, got {os.fspath(path)!r}")
    if target.exists() and not target.is_file():  # a folder, or a device, which would be replaced
        raise ValueError(f"`path` must be a file, got {os.fspath(path)!r}")
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"arrays must be of numbers that safetensors knows, got {array.dtype} in {name!r}")
    kept = json.loads(json.dumps(metadata))  # as it will be read
    try:
        with written_whole(target) as file:
            _write(file, arrays, kept)
    except OSError as error:
        reason = error.strerror or error
        raise type(error)(f"`path` must be a file that can be written, got {os.fspath(path)!r} ({reason})") from None


def _write(file: IO[bytes], arrays: Mapping[str, Array], metadata: Any) -> None:
    """Writes the data first, because only then its digest is known, and then the header before it."""

    def header(digest: str) -> bytes:
        about = {"version": VERSION, "digest": digest, "metadata": metadata}
        entries: dict[str, Any] = {"__metadata__": {ENTRY: json.dumps(about, sort_keys=True)}}
        for name, begin in offsets.items():
            array = arrays[name]
            entries[name] = {
                "dtype": DTYPES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [begin, begin + _size(array)],
            }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    offsets, end = {}, 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        offsets[name] = end
        end += _size(arrays[name])
    content = _digest_of(arrays, metadata)
    data_at = len(header(content.hexdigest()))
    for name in sorted(arrays):
        array = arrays[name]
        file.seek(data_at + offsets[name])
        written = 0
        for piece in [array] if isinstance(array, np.ndarray) else array:
            as_bytes = _bytes(piece)
            content.update(as_bytes)
            file.write(as_bytes)
            written += len(as_bytes)
        if written != _size(array):
            raise ValueError(f"pieces must make {_size(array)} bytes of {name!r}, got {written}")
    file.seek(0)
    file.write(header(content.hexdigest()))


def write_whole(target: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    with written_whole(target) as file:
        file.write(content)


@contextmanager
def written_whole(target: Path) -> Iterator[IO[bytes]]:
    """A file to write to, beside its place, which is moved there when all of it is on the disk."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(target.parent)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the metadata of a file that `write_arrays` wrote; anything else is refused in one sentence."""
    arrays, metadata = map_arrays(path)
    return {name: np.array(array) for name, array in arrays.items()}, metadata


def map_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """As `read_arrays`, but the arrays stay in the file and cannot be written to: a part that is used is read then.

    The file may be replaced or removed meanwhile, as `write_arrays` does it; who overwrites it changes the arrays.
    """
    check_path(path)
    given = repr(os.fspath(path))
    try:
        if not Path(path).is_file():
            reason = "there is none" if not Path(path).exists() else "it is a folder or a device"
            raise FileNotFoundError(f"`path` must be a file, got {given} ({reason})")
        with open(path, "rb") as file:  # Python's own errors, if it cannot be opened
            with safe_open(path, framework="np") as checked:  # whether the header is one, and fits the file
                entry = (checked.metadata() or {}).get(ENTRY)
            arrays = {} if entry is None else _mapped(file)
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
    content = _digest_of(arrays, metadata)
    for name in sorted(arrays):
        content.update(_bytes(arrays[name]))
    if version != VERSION or digest != content.hexdigest():
        raise ValueError(damaged)
    return arrays, metadata


def _mapped(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of a file whose header has been checked."""
    data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    data_at = 8 + int.from_bytes(data[:8].tobytes(), "little")
    entries = json.loads(data[8:data_at].tobytes())
    kinds = {called: jnp.dtype(name) for name, called in DTYPES.items()}
    arrays = {}
    for name in sorted(entries.keys() - {"__metadata__"}):
        begin, end = entries[name]["data_offsets"]
        part = data[data_at + begin : data_at + end]
        arrays[name] = part.view(kinds[entries[name]["dtype"]]).reshape(entries[name]["shape"])
    return arrays


def _digest_of(arrays: Mapping[str, Array], metadata: Any) -> Any:
    """The digest of a file before that of its data is added, array by array in the order of their names."""
    content = hashlib.blake2b(digest_size=16)
    described = {name: [arrays[name].dtype.name, list(arrays[name].shape)] for name in sorted(arrays)}
    content.update(json.dumps([VERSION, metadata, described], sort_keys=True).encode())
    return content


def _size(array: Array) -> int:
    """In bytes."""
    return math.prod(array.shape) * array.dtype.itemsize


def _bytes(array: np.ndarray) -> memoryview:
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def _sync_folder(folder: Path) -> None:
    """Makes the new name as lasting as the bytes, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
