"""What came out of a study's runs: one line of JSON a run, small enough for git.

    results/copy-small.jsonl     options, how it ended, a thinned curve, machine and versions of every run

Tables and figures are made from these files alone, so that anyone can redraw them without training.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snapgrad.runs import disk
from snapgrad.runs.directory import Record, RunDirectory
from snapgrad.runs.options import TASKS, Options
from snapgrad.sweep.study import INDIFFERENT, Choice, Planned, Series, Study, identity

POINTS = 64  # of a curve, at most
DIGITS = 5  # that are kept of a value
STATUSES = ("finished", "diverged")
CURVES = ("level", "valid_bits", "bits", "error")
ENDINGS = ("tokens", "updates", "seconds", *CURVES)


@dataclass(frozen=True)
class Result:
    """One run as it ended."""

    task: str
    options: dict[str, Any]
    status: str  # "finished" or "diverged"
    final: dict[str, float]
    curve: dict[str, list[float]]  # "tokens", "seconds" and what was measured, of equal length
    about: dict[str, Any]

    @property
    def identity(self) -> tuple[Any, ...]:
        """What it has in common with a planned run."""
        return identity(self.options, TASKS[self.task]())

    @property
    def tokens_per_second(self) -> float:
        """The median between neighbouring points of the curve: a run that was halted is no slower for it."""
        tokens, seconds = (np.diff(self.curve[name], prepend=0.0) for name in ("tokens", "seconds"))
        moved = seconds > 0
        return float(np.median(tokens[moved] / seconds[moved])) if moved.any() else float("nan")

    def column(self, metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, seconds and values where this was measured."""
        rows = zip(self.curve["tokens"], self.curve["seconds"], self.curve.get(metric, []), strict=False)
        kept = np.array([row for row in rows if row[2] is not None], float).reshape(-1, 3)
        return kept[:, 0], kept[:, 1], kept[:, 2]


Results = dict[tuple[Any, ...], Result]


def path_of(folder: Path, study: str) -> Path:
    """The file of a study's results."""
    return folder / f"{study}.jsonl"


@contextmanager
def held_by_one(folder: Path, name: str) -> Iterator[None]:
    """Refuses a second process that carries out the same, for the time of the context."""
    # The file stays: who removed it might remove it from under a third process, which has just opened it.
    with disk.locked(folder / f".{name}.lock", f"another process is carrying out {name} in {folder}"):
        yield


def read(path: Path) -> Results:
    """All results of a file, by what identifies their run; none if there is no file."""
    if not path.exists():
        return {}
    found: Results = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            result = _checked(Result(**json.loads(line)))
            identity = result.identity
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # no JSON, or that of something else
            raise ValueError(
                f"line {number} of {path} must be a result, got {line[:40]!r} ({error!r}): "
                "without this line the run is trained again"
            ) from None
        if identity in found:
            raise ValueError(
                f"line {number} of {path} must be of another run than those before it: delete one of the two"
            )
        found[identity] = result
    return found


def _checked(result: Result) -> Result:
    """Refuses what tables and figures could not be made from."""
    if result.status not in STATUSES:
        raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {result.status!r}")
    missing = {"updates", "seconds"} - result.final.keys()
    if missing:
        raise ValueError(f"final must have updates and seconds, got {', '.join(result.final)}")
    lengths = {len(values) for values in result.curve.values()}
    if len(lengths) > 1:
        raise ValueError(f"a curve must have columns of one length, got {sorted(lengths)}")
    for name, values in [*result.curve.items(), ("final", result.final.values())]:
        if not all(value is None or isinstance(value, (int, float)) for value in values):
            raise ValueError(f"{name} must be numbers, got {list(values)!r:.40}")
    return result


def is_of_results(path: Path) -> bool:
    """Whether it begins with one; a file of somebody else does not."""
    with open(path, "rb") as file:
        try:
            return bool(Result(**json.loads(file.readline())).identity)
        except (ValueError, TypeError, KeyError, AttributeError):
            return False


def write(path: Path, results: Iterable[Result]) -> None:
    """Writes them whole or not at all, in an order that does not depend on when they came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = sorted(json.dumps(dataclasses.asdict(result), separators=(",", ":")) for result in results)
    disk.write(path, "".join(line + "\n" for line in lines))


def of_run(run: RunDirectory) -> Result:
    """The result of a run that has ended."""
    outcome, options = run.outcome(), run.options()
    if outcome is None:
        raise ValueError(f"a run must have ended to give a result, got {str(run.path)!r}")
    records = run.metrics()
    tokens = [record["tokens"] for record in records]
    if np.any(np.diff(tokens) <= 0):
        path = run.path / "metrics.jsonl"
        raise ValueError(f"{path} must have records in the order of their tokens, got {tokens[:3]}, ...")
    last = {**(records[-1] if records else {}), **outcome}
    final = {name: _rounded(last[name]) for name in ENDINGS if last.get(name) is not None}
    bits = [record["bits"] for record in records if record.get("bits") is not None]
    if bits:  # of a single record they are noisy: the mean of the last tenth
        final["bits"] = _rounded(float(np.mean(bits[-max(1, len(bits) // 10) :])))
    about = {name: value for name, value in run.about().items() if value != ""}
    return Result(options.task, _plain(options), outcome["status"], final, _thinned(records), about)


def _plain(options: Options) -> dict[str, Any]:
    """The options that matter to what is learnt."""
    fields = dataclasses.asdict(options)
    return {name: value for name, value in fields.items() if value is not None and name not in INDIFFERENT}


def _thinned(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Evenly spaced records and validations with the last ones, and those at which the level grew.

    Between two records training bits are averaged.
    """
    measured = [name for name in CURVES if any(record.get(name) is not None for record in records)]
    validated = [n for n, record in enumerate(records) if "valid_bits" in record]
    # Validations are rarer than records: none of them is dropped before there are too many.
    levels = [record.get("level") for record in records]
    grown = [n for n in range(1, len(records)) if levels[n] != levels[n - 1]]
    chosen = sorted({*_spaced(range(len(records))), *_spaced(validated), *_spaced(grown)})
    curve: dict[str, list[Any]] = {"tokens": [], "seconds": [], **{name: [] for name in measured}}
    before = -1
    for n in chosen:
        curve["tokens"].append(records[n]["tokens"])
        curve["seconds"].append(_rounded(records[n]["seconds"]))
        for name in measured:
            if name == "bits":
                between = [r["bits"] for r in records[before + 1 : n + 1] if r.get("bits") is not None]
                curve[name].append(_rounded(float(np.mean(between))) if between else None)
            else:
                value = records[n].get(name)
                curve[name].append(None if value is None else _rounded(value))
        before = n
    return curve


def _spaced(pool: Sequence[int]) -> list[int]:
    return [pool[round(at)] for at in np.linspace(0, len(pool) - 1, min(POINTS, len(pool)))]


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


# ---- what to do next, and what was chosen: functions of the results alone


def asked(study: Study, results: Results) -> tuple[list[Planned], list[Planned]]:
    """The runs that the study asks for: those that can be started, and those that wait for a choice.

    Which series the second will be of is not known: the first of each choice stands for it.
    """
    now: dict[Any, Planned] = {}
    later: dict[Any, Planned] = {}
    for choice in study.choices:
        first = [series.runs[0] for series in choice.series]
        now |= {run.identity: run for run in first}
        if decided(choice, results):
            now |= {run.identity: run for run in best(choice, results, study.metric).runs}
        else:
            later |= {run.identity: run for run in choice.series[0].runs}
    return list(now.values()), [run for key, run in later.items() if key not in now]


def missing(study: Study, results: Results) -> list[Planned]:
    """The planned runs that can be started now: where something is selected, other seeds wait for the choice."""
    return [run for run in asked(study, results)[0] if run.identity not in results]


def decided(choice: Choice, results: Results) -> bool:
    """Whether everything has been tried that there is to choose from."""
    return all(series.runs[0].identity in results for series in choice.series)


def best(choice: Choice, results: Results, metric: str) -> Series:
    """The series whose first seed ended best; a run that diverged is the worst, and of two alike the first counts."""

    def score(series: Series) -> tuple[float, float]:
        result = results[series.runs[0].identity]
        if result.status == "diverged" or metric not in result.final:
            return (-np.inf, -np.inf)
        # Levels are whole numbers: of two alike, the one that needs fewer bits.
        bits = -result.final.get("bits", np.inf)
        return (result.final["level"], bits) if metric == "level" else (-result.final[metric], bits)

    return max(choice.series, key=score)
