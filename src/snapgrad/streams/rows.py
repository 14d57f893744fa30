"""Rows of a CSV file or of JSON lines, one by one, as they come: samples of named values with their target."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaN", "nan")  # in a CSV file


class Row(NamedTuple):
    """One sample; y is None where the target is empty."""

    x: dict[str, Any]
    y: Any


def read_rows(file: IO[str], name: str, target: str) -> Iterator[Row]:
    """The rows of a file that is open. It is JSON lines if its name or its first character says so, else CSV."""
    lines = _lines(file, name)
    first = next(lines, None)
    if first is None:
        return
    first = first.removeprefix("\ufeff")  # a byte order mark, as spreadsheets write it
    if name.endswith(JSON_ENDINGS) or (not name.endswith(".csv") and first.lstrip().startswith("{")):
        yield from _json_rows(first, lines, name, target)
    else:
        yield from _csv_rows(first, lines, name, target)


def _lines(file: IO[str], name: str) -> Iterator[str]:
    try:
        yield from (line for line in file if line.strip())
    except UnicodeDecodeError as error:
        found = " ".join(f"0x{byte:02x}" for byte in error.object[error.start : error.end])
        raise ValueError(
            f"`file` must be text in UTF-8, got {name}, with the byte {found} in it, which is none"
        ) from None


def _json_rows(first: str, lines: Iterator[str], name: str, target: str) -> Iterator[Row]:
    line: str | None = first
    number = 0
    while line is not None:
        number += 1
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ValueError(f"row {number} of {name} must be a JSON object, got something else ({error})") from None
        if not isinstance(found, dict):
            raise ValueError(f"row {number} of {name} must be a JSON object, got {type(found).__name__}")
        yield Row(found, found.pop(target, None))
        line = next(lines, None)


def _csv_rows(first: str, lines: Iterator[str], name: str, target: str) -> Iterator[Row]:
    columns = next(csv.reader([first]))
    if target not in columns:
        hint = "; columns must be separated by commas" if len(columns) == 1 else ""
        raise ValueError(f"`target` must be a column of {name}, {', '.join(columns)}, got {target!r}{hint}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name} must have columns of different names, got {', '.join(columns)}")
    for number, values in enumerate(csv.reader(lines), 1):
        if len(values) != len(columns):
            raise ValueError(f"row {number} of {name} must have {len(columns)} values, got {len(values)}")
        found = {column: parse(value) for column, value in zip(columns, values, strict=True)}
        yield Row(found, found.pop(target))


def parse(text: str) -> float | bool | str | None:
    """What a field of a CSV file means: nothing, a number, true or false, or a string."""
    text = text.strip()
    if text in MISSING:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return text if "_" in text else float(text)  # Python reads 1_000 as a number; here it is a name
    except ValueError:
        return text
