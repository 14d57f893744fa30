"""Options from and to TOML. A file's keys become arguments of the command line, so that both are checked alike."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from pathlib import Path
from typing import Any

from snapgrad.runs.options import TASKS, Options


def read(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(
            f"`config` must be a TOML file that can be read, got {str(path)!r} ({error.strerror})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"`config` must be valid TOML, got {str(path)!r} ({error})") from None


def arguments(values: dict[str, Any], task: str, source: Path) -> list[str]:
    """The arguments of `train` that say what the file says; an unknown key is refused with the nearest known one."""
    known = {field.name: field for field in dataclasses.fields(TASKS[task])}
    given = []
    for key, value in values.items():
        if key == "task":
            if value != task:
                raise ValueError(f"`task` must be {task!r} in {source}, got {value!r}")
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the keys are {', '.join(known)}"
            raise ValueError(f"{key!r} in {source} is not an option of `train {task}`{hint}")
        if not isinstance(value, str | int | float | bool):
            raise ValueError(f"`{key}` must be a single value in {source}, got {value!r}")
        name, wanted = key.replace("_", "-"), str(known[key].type)
        if isinstance(value, str) and wanted.removesuffix(" | None") in ("int", "float"):
            raise ValueError(f"`{key}` must be a number in {source}, got {value!r}")
        if known[key].type == "bool":
            if not isinstance(value, bool):
                raise ValueError(f"`{key}` must be true or false in {source}, got {value!r}")
            given.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, bool):
            raise ValueError(f"`{key}` must not be true or false in {source}, got {value!r}")
        else:
            given += [f"--{name}", str(value)]
    return given


def text(options: Options) -> str:
    """The options as TOML, all of them but those that are not set."""
    import tomli_w

    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    plain = {name: str(v) if isinstance(v, Path) else v for name, v in fields.items() if v is not None}
    return tomli_w.dumps({"task": options.task, **plain})
