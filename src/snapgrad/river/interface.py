"""River's interfaces, and the arguments that the three estimators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from snapgrad.kernels.select import Backend
from snapgrad.learner.guards import BadValues, InfluenceGrowth

try:
    from river import base
    from river.time_series.base import Forecaster
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"`snapgrad.river` must have River installed, got none ({error}): pip install 'snapgrad[river]'"
    ) from None

__all__ = ["Forecaster", "SnapEstimator", "base"]


class SnapEstimator(base.Estimator):
    """What the estimators share: their arguments, which River looks up by name, and the model that they make.

    Parameters
    ----------
    features
        Slots for features by name. A number or a boolean takes one, a string one for each of its values; when three
        quarters of the slots are taken, what is new shares the others by a hash.
    cell
        "vanilla", "gru", "lstm", or any cell of the library with so many inputs.
    units
        Units of a cell that is named; 64 unless given.
    sparsity
        Share of the cell's weights that do not exist, chosen at random.
    algorithm
        A name, such as "snap", "rtrl" or "rflo", or a function (cell, loss) -> `sg.Algorithm`.
    order
        n of SnAp-n.
    optimiser
        Of Optax, by name, such as "adam" or "sgd(momentum=0.9)", or made.
    learning_rate
        Of an optimiser that is named; 3e-3 unless given.
    clip
        The gradient's global norm is clipped to it; None for no clipping.
    standardise
        Whether numbers are standardised by their running mean and deviation, those of x and a number to be predicted.
    limit
        Inputs beyond it in magnitude, after standardisation, are bad, as are infinite ones.
    bad_values
        "skip" does not learn from a sample with bad values, "clip" reads them as the limit.
    influence_limit
        A magnitude that the influence is not to exceed.
    influence_growth
        What is done where it does: "warn", "decay" or "reset".
    seed
        Determines weights and sparsity.
    backend
        "native", "reference" or "auto".

    """

    _make: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        features: int = 32,
        cell: Any = "gru",
        units: int | None = None,
        sparsity: float = 0.0,
        algorithm: Any = "snap",
        order: int | None = 1,
        optimiser: Any = "adam",
        learning_rate: float | None = None,
        clip: float | None = 1.0,
        standardise: bool = True,
        limit: float | None = 1e6,
        bad_values: BadValues = "skip",
        influence_limit: float = 1e6,
        influence_growth: InfluenceGrowth = "warn",
        seed: int = 0,
        backend: Backend = "auto",
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        for name, value in given.items():
            setattr(self, name, value)
        self._model = self._make(**given)

    @property
    def counts(self) -> dict[str, int]:
        """Samples seen, and how often bad values or a growing influence had to be dealt with."""
        return self._model.learner.counts
