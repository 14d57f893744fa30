"""The command line: finds the command, reads its options, and turns refusals into one line and an exit code.

Exit codes: 0 done; 1 training diverged; 2 wrong options or files; 130 interrupted (143 by SIGTERM), resumable.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from snapgrad.commands.analyse import Analyse
from snapgrad.commands.bench import Bench
from snapgrad.commands.costs import Costs
from snapgrad.commands.demo import Demo
from snapgrad.commands.info import Info
from snapgrad.commands.report import Report
from snapgrad.commands.train import Resume, Train
from snapgrad.runs import toml
from snapgrad.runs.options import TASKS
from snapgrad.runs.training import Diverged, Interrupted

Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Analyse, tyro.conf.subcommand("analyse")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Costs, tyro.conf.subcommand("costs")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Info, tyro.conf.subcommand("info")]
)


def main() -> None:
    """Entry point of the `snapgrad` command."""
    messages = Console(stderr=True, soft_wrap=True, highlight=False)
    if sys.argv[1:] == ["--version"]:
        print(version("snapgrad"))
        return
    try:
        command = tyro.cli(
            Command,
            args=with_config(sys.argv[1:]),
            prog="snapgrad",
            description="Train recurrent networks online.",
            config=(tyro.conf.OmitArgPrefixes,),
        )
        command.run()
    except (ValueError, OSError) as error:
        messages.print(f"error: {error}", markup=False)
        sys.exit(2)
    except ModuleNotFoundError as error:
        messages.print(f"error: this command needs the extra `train` of snapgrad ({error})", markup=False)
        sys.exit(2)
    except Diverged as error:
        messages.print(f"error: {error}", markup=False)
        sys.exit(1)
    except Interrupted as stop:
        messages.print(str(stop), markup=False)
        sys.exit(128 + stop.number)
    except KeyboardInterrupt:
        sys.exit(130)


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
