"""The command line: finds the command, reads its options, and turns refusals into one line and an exit code.

Exit codes: 0 done; 1 training diverged; 2 wrong options, or files that cannot be used; 70 an unexpected error;
75 another process of the run was lost, resumable; 130 interrupted (143 by SIGTERM), resumable.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from snapgrad.commands.analyse import Analyse
from snapgrad.commands.bench import Bench
from snapgrad.commands.costs import Costs
from snapgrad.commands.demo import Demo
from snapgrad.commands.export import Export
from snapgrad.commands.generate import Generate
from snapgrad.commands.info import Info
from snapgrad.commands.plan import Plan
from snapgrad.commands.report import Report
from snapgrad.commands.reproduce import Reproduce
from snapgrad.commands.stream import Stream
from snapgrad.commands.sweep import SweepFolder
from snapgrad.commands.train import Resume, Train
from snapgrad.runs import disk, toml
from snapgrad.runs.options import TASKS
from snapgrad.runs.processes import LOST, ProcessLost
from snapgrad.runs.training import Diverged, Interrupted

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Stream, tyro.conf.subcommand("stream")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Analyse, tyro.conf.subcommand("analyse")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[SweepFolder, tyro.conf.subcommand("sweep")]
    | Annotated[Costs, tyro.conf.subcommand("costs")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Info, tyro.conf.subcommand("info")]
)


UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
TRACEBACK = "SNAPGRAD_TRACEBACK"  # the environment variable that asks for tracebacks


def main() -> None:
    """Entry point of the `snapgrad` command."""
    messages = Console(stderr=True, soft_wrap=True, highlight=False)

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        messages.print(f"warning: {message}", markup=False)

    with warnings.catch_warnings():
        warnings.showwarning = show_warning  # one line, without the place in the code
        try:
            run(sys.argv[1:])
            sys.stdout.flush()  # here, where a full disk can still be answered
        except Exception as error:
            code, text = answer(error)
            if TRACEBACK in os.environ:
                traceback.print_exc()
            if text:
                messages.print(text, markup=False)
            _drop_output()
            if isinstance(error, ProcessLost):
                os._exit(code)  # at its end Python would wait for the process that was lost
            sys.exit(code)
        except KeyboardInterrupt:
            sys.exit(130)


def run(args: list[str]) -> None:
    """Finds the command and runs it."""
    if args == ["--version"]:
        print(version("snapgrad"))
        return
    command = tyro.cli(
        Command,
        args=with_config(args),
        prog="snapgrad",
        description="Train recurrent networks online.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    command.run()


def answer(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for an error."""
    match error:
        case Interrupted():
            return 128 + error.number, str(error)
        case Diverged():
            return 1, f"error: {error}"
        case ProcessLost():
            return LOST, f"error: {error}"
        case BrokenPipeError():  # as `snapgrad info | head -1`: nobody reads on, and nobody needs to be told
            return 128 + 13, ""
        case OSError():
            return 2, f"error: {disk.sentence(error)}"
        case ModuleNotFoundError():
            extra = "ray" if error.name == "ray" else "train"
            return 2, f"error: this command needs the extra `{extra}` of snapgrad ({error})"
        case ValueError() if _is_own(error):
            return 2, f"error: {error}"
    first = (str(error).splitlines() or [""])[0]
    return UNEXPECTED, (
        f"error: unexpected {type(error).__name__} ({first}): this should not happen, please report it; "
        f"{TRACEBACK}=1 shows where it comes from"
    )


def _is_own(error: Exception) -> bool:
    """Whether snapgrad itself refuses something, and not a library that it calls."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] == "snapgrad" or frame.f_globals["__name__"] == "__main__"


def _drop_output() -> None:
    """Forgets what cannot be printed (a full disk, a pipe that was closed), where Python would complain once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def with_config(args: list[str]) -> list[str]:
    """The arguments of `train TASK` with those of its TOML file before them: of two alike, the later counts."""
    if len(args) < 2 or args[0] != "train" or args[1] not in TASKS:
        return args
    places = [number for number, arg in enumerate(args) if arg.partition("=")[0] == "--config"]
    if len(places) > 1:
        raise ValueError("`config` must be given once, got it more often")
    for number in places:
        _, _, value = args[number].partition("=")
        if value or number + 1 < len(args):
            source = Path(value or args[number + 1])
            return [*args[:2], *toml.arguments(toml.read(source), args[1], source), *args[2:]]
    return args


if __name__ == "__main__":
    main()
