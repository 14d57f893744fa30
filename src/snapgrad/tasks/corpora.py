"""Texts to train on: any file or folder, WikiText, or the source of Python's library, which all machines have."""

from __future__ import annotations

import hashlib
import os
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

VALIDATION_SHARE = 0.05  # of a text that comes without a validation text: its end
MOST_VALIDATION = 1_000_000  # bytes of it
DATA_DIR = "SNAPGRAD_DATA"  # the environment variable that names the data directory


class Corpus(NamedTuple):
    """Bytes to train and to validate on."""

    train: np.ndarray
    valid: np.ndarray


class Archive(NamedTuple):
    """A published text: where it is, and the MD5 sum by which it has been known since torchtext listed it."""

    url: str
    md5: str


ARCHIVES = {
    "wikitext2": Archive("https://wikitext.smerity.com/wikitext-2-v1.zip", "542ccefacc6c27f945fb54453812b3cd"),
    "wikitext103": Archive("https://wikitext.smerity.com/wikitext-103-v1.zip", "9ddaacaf6af0710eda8c456decff7832"),
}
NAMED = ("stdlib", *ARCHIVES)
FOLDERS = {"wikitext2": ("wikitext-2", "wikitext2"), "wikitext103": ("wikitext-103", "wikitext103")}


def corpus(name: str | Path, data_dir: Path | None = None) -> Corpus:
    """The corpus of that name or path.

    Args:
        name: "stdlib", "wikitext2", "wikitext103", or the path of a file or a folder. Of a folder, the files with
            "train" and "valid" in their names are taken, or, if there are none, all its text, whose end is kept for
            validation.
        data_dir: where WikiText is looked for and downloaded to; by default $SNAPGRAD_DATA, else ~/.cache/snapgrad.
    """
    if not isinstance(name, str | Path) or not str(name).strip():
        raise ValueError(f'`corpus` must be "stdlib", "wikitext2", "wikitext103" or the path of a text, got {name!r}')
    if name == "stdlib":
        return split(standard_library())
    if isinstance(name, str) and name in ARCHIVES:
        given = data_dir or (Path(os.environ[DATA_DIR]) if DATA_DIR in os.environ else None)
        return read_folder(find_or_download(name, given or Path.home() / ".cache" / "snapgrad"))
    path = Path(name).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file():
        return split(path.read_bytes())
    raise ValueError(f'`corpus` must be "stdlib", "wikitext2", "wikitext103" or the path of a text, got {name!r}')


def standard_library() -> bytes:
    """The source of the running Python's library, without tests and what is installed beside it, in order of names."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in left_out]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    if not files:
        raise ValueError(f'`corpus` must be a path where Python has no source of its library, got "stdlib" (in {root})')
    return b"".join(path.read_bytes() for path in sorted(files))


def read_folder(folder: Path) -> Corpus:
    """A folder's train and valid files, or all its files with an automatic split."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "README")))
    parts = {part: [path for path in files if part in path.name] for part in ("train", "valid")}
    if parts["train"] and parts["valid"]:
        texts = {part: b"".join(path.read_bytes() for path in paths) for part, paths in parts.items()}
        for part, text in texts.items():
            if len(text) < 2:
                names = ", ".join(path.name for path in parts[part])
                raise ValueError(f"`corpus` must have at least 2 bytes in {names} of {folder}, got {len(text)}")
        return Corpus(*(np.frombuffer(text, np.uint8) for text in texts.values()))
    if parts["train"] or parts["valid"]:
        missing = "valid" if parts["train"] else "train"
        raise ValueError(
            f"`corpus` must have a file with {missing!r} in its name beside the other, got {str(folder)!r}"
        )
    return split(b"".join(path.read_bytes() for path in files))


def split(text: bytes) -> Corpus:
    """Keeps the end of a text for validation."""
    symbols = np.frombuffer(text, np.uint8)
    valid = min(int(VALIDATION_SHARE * len(symbols)), MOST_VALIDATION)
    if valid < 2:
        raise ValueError(f"`corpus` must have at least {int(2 / VALIDATION_SHARE)} bytes, got {len(symbols)}")
    return Corpus(symbols[:-valid], symbols[-valid:])


def find_or_download(name: str, data_dir: Path) -> Path:
    """The folder of a published text under the data directory; fetched and checked if it is not there."""
    for folder in FOLDERS[name]:
        if (data_dir / folder).is_dir():
            return data_dir / folder
    data_dir.mkdir(parents=True, exist_ok=True)
    archive = data_dir / f"{name}.zip"
    partial = archive.with_suffix(".part")
    import urllib.request  # not needed by anybody else, and slow to import

    try:
        urllib.request.urlretrieve(ARCHIVES[name].url, partial)
    except OSError as error:
        raise ValueError(
            f"`corpus` must be unpacked from {ARCHIVES[name].url} to {data_dir / FOLDERS[name][0]} (wiki.train.tokens "
            f"and wiki.valid.tokens), or to the same in a folder that ${DATA_DIR} names, where it cannot be downloaded "
            f"({error}), got {name!r}"
        ) from None
    found = hashlib.md5(partial.read_bytes(), usedforsecurity=False).hexdigest()
    if found != ARCHIVES[name].md5:
        partial.unlink()
        raise ValueError(f"the download of {name} is damaged: its MD5 sum must be {ARCHIVES[name].md5}, got {found}")
    partial.replace(archive)
    unpacked = data_dir / f"{name}.unpacking"
    with zipfile.ZipFile(archive) as files:
        files.extractall(unpacked)
    (unpacked / FOLDERS[name][0]).replace(data_dir / FOLDERS[name][0])
    unpacked.rmdir()
    archive.unlink()
    return data_dir / FOLDERS[name][0]
