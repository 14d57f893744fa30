"""Verdicts: a claim "A is better than B" held against the seeds of both.

The order of two methods counts as seen where their means differ by more than the spread, the root of the sum of both
sample variances; a method that was run with one seed has none, and the evidence says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from snapgrad.reproduction.measured import Measured
from snapgrad.sweep.experiment import Claim

VERDICTS = ("reproduced", "partly reproduced", "not reproduced")
ANSWERS = ("yes", "partly", "no")
NOT_MEASURED, NO_EVIDENCE = "not yet measured", "none yet"


class Said(NamedTuple):
    """A claim or a question, and what we found."""

    words: str
    source: str
    verdict: str
    evidence: str
    question: bool = False


def unmeasured(words: str, source: str) -> Said:
    """A claim that there are no results for yet."""
    return Said(words, source, NOT_MEASURED, NO_EVIDENCE)


def verdict(held: Sequence[bool], words: tuple[str, str, str] = VERDICTS) -> str:
    """Whether all of the comparisons hold, at least a third of them, or fewer."""
    return words[0] if all(held) else words[1] if 3 * sum(held) >= len(held) else words[2]


class Comparison(NamedTuple):
    """Of two methods on one network."""

    network: str
    better: Measured
    than: Measured
    holds: bool
    amount: float  # of what `claim.after` names


@dataclass(frozen=True)
class Finding:
    """A claim, what was measured, and what follows."""

    claim: Claim
    comparisons: tuple[Comparison, ...]
    planned: int  # comparisons that there are to be

    @property
    def evidence(self) -> str:
        """How much the verdict rests on."""
        held, made = sum(comparison.holds for comparison in self.comparisons), len(self.comparisons)
        counts = sorted(len(one.runs) for one in self._measured)
        seeds = " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
        seeds += " seed" if counts[-1:] == [1] else " seeds"
        open_still = f", {self.planned - made} still to be made" if made < self.planned else ""
        return f"{held} of {made} comparisons hold, {seeds}{open_still}" if made else NO_EVIDENCE

    @property
    def verdict(self) -> str:
        """In a word or two; as long as comparisons or seeds are missing it says so."""
        held = [comparison.holds for comparison in self.comparisons]
        if not held:
            return NOT_MEASURED
        found = verdict(held, ANSWERS if self.claim.question else VERDICTS)
        complete = len(held) == self.planned and all(one.complete for one in self._measured)
        return found if complete else f"{found}, so far"

    def said(self, source: str) -> Said:
        """A row of the page's summary; `source` is where the claim stands if it does not say so itself."""
        return Said(self.claim.words, self.claim.source or source, self.verdict, self.evidence, self.claim.question)

    @property
    def _measured(self) -> list[Measured]:
        return [one for comparison in self.comparisons for one in (comparison.better, comparison.than)]


def judge(claim: Claim, measured: Sequence[Measured], planned: Iterable[tuple[str, str]], metric: str) -> Finding:
    """Compares all pairs that the claim speaks of and that have results; `planned` are networks with methods."""
    by_name = {(one.network, one.method): one for one in measured}
    wanted = dict.fromkeys(planned)
    networks = claim.networks or tuple(dict.fromkeys(network for network, _ in wanted))
    pairs = [
        ((network, better), (network, than))
        for network in networks
        for better, than in _pairs(claim)
        if (network, better) in wanted and (network, than) in wanted
    ]
    found = [_compare(claim, a[0], by_name[a], by_name[b], metric) for a, b in pairs if a in by_name and b in by_name]
    return Finding(claim, tuple(found), len(pairs))


def _pairs(claim: Claim) -> Iterator[tuple[str, str]]:
    if claim.pairwise:
        yield from zip(claim.better, claim.than, strict=True)
    else:
        yield from ((better, than) for better in claim.better for than in claim.than)


def _compare(claim: Claim, network: str, better: Measured, than: Measured, metric: str) -> Comparison:
    sign = 1 if metric == "level" else -1
    amount = min(better.had(claim.after), than.had(claim.after))  # where both have been
    a, b = better.after(metric, amount, claim.after), than.after(metric, amount, claim.after)
    if not np.isfinite(a).all():  # what diverged is no better than anything
        return Comparison(network, better, than, False, amount)
    difference = sign * (a.mean() - b.mean())
    holds = (
        difference >= -max(spread_of_difference(a, b), claim.within)
        if claim.or_equal
        else difference > spread_of_difference(a, b)
    )
    return Comparison(network, better, than, bool(holds and difference <= claim.at_most), amount)


def spread_of_difference(*groups: np.ndarray) -> float:
    """The root of the sum of the sample variances, but for those of groups in which a seed diverged."""
    return float(np.sqrt(sum(v.var(ddof=1) for v in groups if len(v) > 1 and np.isfinite(v).all())))
