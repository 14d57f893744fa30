"""Runs a training: trains in slices, writes down what happens, keeps checkpoints, stops when asked to.

Where a slice ends depends on the tokens seen alone, never on the clock, so that a run that was killed and resumed takes
the same slices and ends with the same bits. Checkpoints go by the clock; they change nothing.
"""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jax.sharding import Mesh

from snapgrad.plasticity import density
from snapgrad.runs import disk, processes, toml
from snapgrad.runs.build import Experiment, build
from snapgrad.runs.checkpoint import Totals
from snapgrad.runs.directory import RunDirectory, about
from snapgrad.runs.disk import Record
from snapgrad.runs.options import Options
from snapgrad.runs.signals import stop_requests
from snapgrad.tasks.base import Task
from snapgrad.train import Carry

Show = Callable[[Record], None]  # told every record
WORSE = 2  # times the cost of guessing: what ends above has broken down, though its loss is finite


class Diverged(Exception):
    """The loss, or the weights, were not finite."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the run stands and can be resumed."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number  # of the signal


def run_training(
    run: RunDirectory, show: Show, experiment: Experiment | None = None, mesh: Mesh | None = None
) -> Record:
    """Trains from where the run stands to its end, and returns the outcome. A run that has ended is left as it is.

    The experiment is what the run's options name; it is built from them, for a `mesh` if there is one, if it is not
    given. Where a mesh spans several processes, each calls this, all but the first with a `Follower` of the run.
    """
    with run.locked(), processes.others_watched(run.resume_command):
        options, outcome = run.options(), run.outcome()
        if outcome is not None and outcome["status"] == "diverged":
            raise Diverged(_divergence(run, outcome["updates"]))
        if outcome is not None and outcome["tokens"] >= options.tokens:
            run.checkpoint()  # refuses options that are not those of what was trained
            return outcome
        found = run.checkpoint()
        experiment = experiment or build(options, mesh)
        trainer = experiment.trainer
        _check_same(run, about(options, experiment.data))
        processes.check_same("options and data", f"{toml.plain(options)} {experiment.data}")
        processes.check_same("the newest checkpoint", str(found and found.totals.tokens))
        if found is None:
            carry, totals = experiment.start(), Totals(0, 0, 0.0)
        else:
            carry, totals = trainer.scatter(found.carry(experiment.template())), found.totals
            del found  # its file stays open as long
        stopping = stop_requests(_stop_after_the_slice)
        with _resumable(run), _events(run, options, totals.tokens) as write_events, stopping as asked:
            run.forget_after(totals.tokens)
            run.reopen()
            if totals.tokens == 0:
                run.save(trainer.pieces(carry), totals, options)  # so that there is a good one whatever happens
            return _train(run, options, experiment, carry, totals, (show, write_events), asked)


@contextmanager
def _resumable(run: RunDirectory) -> Iterator[None]:
    """Where a file cannot be written, says that nothing else is lost and how to go on."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{disk.sentence(error)}; the last checkpoint is unharmed, go on with: {run.resume_command}"
        ) from None


def _train(
    run: RunDirectory,
    options: Options,
    experiment: Experiment,
    carry: Carry,
    totals: Totals,
    listeners: tuple[Show, ...],
    asked: list[int],
) -> Record:
    trainer, saved_at, record = experiment.trainer, time.monotonic(), {}
    task = trainer.task
    validate_every = getattr(options, "validate_every", options.tokens)
    while totals.tokens < options.tokens:
        slice_end = min((totals.tokens // options.log_every + 1) * options.log_every, options.tokens)
        before = totals
        carry, progress = trainer.run(carry, slice_end - totals.tokens)
        totals = Totals(
            totals.tokens + progress.tokens, totals.updates + progress.updates, totals.seconds + progress.seconds
        )
        if not progress.finite:
            run.finish({"status": "diverged", **totals._asdict()})
            raise Diverged(_divergence(run, totals.updates))
        record = {
            **totals._asdict(),
            # A slice of an online run may end before anything was asked.
            task.metric: progress.cost / progress.asked if progress.asked else None,
            "tokens_per_second": progress.tokens / progress.seconds,
        }
        if (level := task.level(carry.task)) is not None:
            record["level"] = int(level)
        if carry.wiring is not None:
            record |= {"density": density(carry.params, carry.wiring), "churn": progress.churn}
        ended = totals.tokens >= options.tokens
        crossed = totals.tokens // validate_every > before.tokens // validate_every
        if experiment.validate is not None and (ended or crossed):
            record["valid_bits"] = experiment.validate(carry.params)
        run.append(record)
        for tell in listeners:
            tell(record)
        is_due = time.monotonic() - saved_at >= options.checkpoint_every
        number, is_due = processes.agree(asked[0] if asked else 0, is_due)
        if ended or number or is_due:
            run.save(trainer.pieces(carry), totals, options)
            saved_at = time.monotonic()
        if ended or number:
            processes.await_the_first()
        if number and not ended:
            raise Interrupted(f"stopped at {totals.tokens:,} tokens; go on with: {run.resume_command}", number)
    outcome = {"status": "finished", **(record or run.metrics()[-1])}
    outcome["tokens_per_second"] = totals.tokens / totals.seconds  # of the run, not of its last slice
    if (warning := _warning(run, options, outcome, task)) is not None:
        outcome["warning"] = warning
    run.finish(outcome)
    return outcome


def _warning(run: RunDirectory, options: Options, outcome: Record, task: Task) -> str | None:
    """What a person should know about a run that has come to its end, though it has learnt nothing."""
    asked = [record[task.metric] for record in run.metrics() if record.get(task.metric) is not None]
    cost = outcome.get("valid_bits", asked[-1] if asked else 0.0)
    if task.guessing is not None and cost > WORSE * task.guessing:
        unit = "bits per character" if task.metric == "bits" else task.metric
        return (
            f"the network is worse than guessing: {cost:.4g} {unit}, where guessing costs {task.guessing:.4g}; "
            "a smaller learning rate or `clip` may help"
        )
    if options.schedule_updates is not None and outcome["updates"] > options.schedule_updates:
        return (
            f"the schedule ended at update {options.schedule_updates} of {outcome['updates']}: the learning rate was "
            "zero from there on"
        )
    return None


def _divergence(run: RunDirectory, update: int) -> str:
    return (
        f"the loss or the weights were not finite at update {update}; the last good checkpoint is in "
        f"{run.path / 'checkpoints'}. Resuming would end there again; a smaller learning rate may help."
    )


def _check_same(run: RunDirectory, now: Record) -> None:
    """An influence is laid out by its backend, and other data is another run; other versions may round otherwise."""
    before = run.about()
    if before["backend"] != now["backend"]:
        raise ValueError(
            f"`backend` must be the one that the run was begun with, {before['backend']}, got {now['backend']}"
        )
    if before["data"] != now["data"]:
        raise ValueError("`corpus` must be the text that the run was begun with, got another one")
    changed = [
        f"{name} {before[name]} -> {now[name]}" for name in ("snapgrad", "jax", "jaxlib") if before[name] != now[name]
    ]
    if changed:
        warnings.warn(f"resumed with other versions, so the bits may differ: {', '.join(changed)}", stacklevel=3)


def _stop_after_the_slice(number: int) -> None:
    """The second signal ends the process at once: Python cannot act while a slice runs, the system can."""
    signal.signal(number, signal.SIG_DFL)
    print("\nstopping at the end of this slice; once more to stop at once", file=sys.stderr)


@contextmanager
def _events(run: RunDirectory, options: Options, begins_at: int) -> Iterator[Show]:
    """A function that writes records as TensorBoard events, if that was asked for."""
    if not options.tensorboard or not processes.is_first():
        yield lambda record: None
        return
    from tensorboardX import SummaryWriter

    # What was written after the checkpoint will be written again.
    with SummaryWriter(str(run.path / "tensorboard"), purge_step=begins_at + 1) as writer:

        def write(record: Record) -> None:
            for name in record.keys() - {"tokens"}:
                if record[name] is not None:
                    writer.add_scalar(name, record[name], record["tokens"])
            writer.flush()

        yield write
