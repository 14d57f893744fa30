"""Options from and to TOML. What is wrong in a file is said with the file's name."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from snapgrad.arguments import did_you_mean
from snapgrad.runs.options import TASKS, Options


def read(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ValueError(
            f"`config` must be a TOML file that can be read, got {str(path)!r} ({error.strerror})"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"`config` must be valid TOML, got {str(path)!r} ({error})") from None


def checked(values: dict[str, Any], task: str, source: Path) -> dict[str, Any]:
    """The options that a file gives, each of its own type; an unknown key is refused with the nearest known one."""
    hints = get_type_hints(TASKS[task])
    known = {field.name: hints[field.name] for field in dataclasses.fields(TASKS[task])}
    given = {}
    for key, value in values.items():
        if key == "task":
            if value != task:
                raise ValueError(f"`task` must be {task!r} in {source}, got {value!r}")
            continue
        if key not in known:
            hint = did_you_mean(key, known) or f"; the keys are {', '.join(known)}"
            raise ValueError(f"{key!r} in {source} is not an option of `train {task}`{hint}")
        kinds = _kinds(known[key])
        if not any(_fits(value, kind) for kind in kinds):
            words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
            hint = did_you_mean(value, words) if isinstance(value, str) else ""
            wanted = " or ".join(_wording(kind) for kind in kinds)
            raise ValueError(f"`{key}` must be {wanted} in {source}, got {value!r}{hint}")
        given[key] = Path(value) if Path in kinds else float(value) if kinds == [float] else value
    return given


def arguments(values: dict[str, Any], task: str, source: Path) -> list[str]:
    """The arguments of `train` that say what the file says."""
    given = []
    for key, value in checked(values, task, source).items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{name}" if value else f"--no-{name}")
        else:
            given += [f"--{name}", str(value)]
    return given


def plain(options: Options) -> dict[str, Any]:
    """The options as TOML and JSON have them, all of them but those that are not set."""
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    values = {name: str(v) if isinstance(v, Path) else v for name, v in fields.items() if v is not None}
    return {"task": options.task, **values}


def text(options: Options) -> str:
    """The options as TOML."""
    import tomli_w

    return tomli_w.dumps(plain(options))


def _kinds(hint: Any) -> list[Any]:
    """The alternatives of a type; None, which TOML cannot say, is left out."""
    if get_origin(hint) is Literal or not get_args(hint):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not type(None)]


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, {int: int, float: int | float, str: str, Path: str}[kind])


def _wording(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'"{word}"' for word in get_args(kind))
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string", Path: "a path"}[kind]
