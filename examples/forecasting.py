"""Forecasting real series one step ahead, by progressive validation: every value is forecast, then learnt.

The series ship inside River (airline passengers, water flow) and statsmodels (sunspots, CO2, which has gaps). Beside
`SnapForecaster`: the last value, the value a season ago, River's SNARIMAX and HoltWinters, and deep-river's LSTM over a
window of 10, which gets its values standardised as ours does. What is not installed (statsmodels, deep-river) is left
out, and said.

    python examples/forecasting.py
"""

from __future__ import annotations

import importlib.util
import math
import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from river import datasets, time_series
from river.time_series.base import Forecaster
from showing import arguments, write_figure, write_table

from snapgrad.report.style import COLOURS
from snapgrad.river import SnapForecaster
from snapgrad.streams.moments import Moments

SEEDS = 3
COLUMNS = ("", "MAE", "over that of the last value", "ms a value", "pickled")


class Series(NamedTuple):
    """Values, NaN where there is none, and how many make a season."""

    values: list[float]
    season: int


class Last(Forecaster):
    """The value so many steps ago."""

    def __init__(self, steps: int) -> None:
        self.steps, self.values = steps, [0.0] * steps

    def learn_one(self, y: float, x: dict[str, Any] | None = None) -> None:
        self.values = [*self.values[1:], y]

    def forecast(self, horizon: int, xs: list[dict[str, Any]] | None = None) -> list[float]:
        return [self.values[step % self.steps] for step in range(horizon)]


class Standardised(Forecaster):
    """A forecaster that sees its series standardised, as SnapForecaster's network does."""

    def __init__(self, model: Any) -> None:
        self.model, self.moments = model, Moments()

    def learn_one(self, y: float, x: dict[str, Any] | None = None) -> None:
        self.moments.take(y)
        self.model.learn_one(self.moments.standardised(y))

    def forecast(self, horizon: int, xs: list[dict[str, Any]] | None = None) -> list[float]:
        return [self.moments.restored(value) for value in self.model.forecast(horizon)]


def all_series(small: bool) -> dict[str, Series]:
    """By name."""
    found = {
        "airline passengers": Series([float(y) for _, y in datasets.AirlinePassengers()], 12),
        "water flow": Series([float(y) for _, y in datasets.WaterFlow()], 24),
    }
    if is_installed("statsmodels"):
        from statsmodels.datasets import co2, sunspots

        found["sunspots"] = Series([float(y) for y in sunspots.load_pandas().data["SUNACTIVITY"]], 11)
        found["CO2"] = Series([float(y) for y in co2.load_pandas().data["co2"]], 52)
    return {name: Series(one.values[:30], 4) for name, one in found.items()} if small else found


def models(season: int) -> dict[str, Callable[[int], Any]]:
    """By name: from a seed to a fresh one."""
    found: dict[str, Callable[[int], Any]] = {
        "SnapForecaster, SnAp-1, LSTM of 32": lambda seed: SnapForecaster(
            features=1, cell="lstm", units=32, learning_rate=1e-2, seed=seed
        ),
        "the last value": lambda seed: Last(1),
        "the value a season ago": lambda seed: Last(season),
        "SNARIMAX, a season of lags": lambda seed: time_series.SNARIMAX(p=season, d=1, q=2, m=season, sd=1),
        "SNARIMAX, three lags": lambda seed: time_series.SNARIMAX(p=3, d=1, q=0),
        "HoltWinters": lambda seed: time_series.HoltWinters(
            alpha=0.3, beta=0.1, gamma=0.6, seasonality=season, multiplicative=False
        ),
    }
    if is_installed("deep_river"):
        from deep_river.forecasting.zoo import LSTMForecaster

        found["deep-river, LSTM of 32, window 10"] = lambda seed: Standardised(
            LSTMForecaster(hidden_size=32, lr=1e-2, seed=seed)
        )
    return found


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


class Outcome(NamedTuple):
    """What a model has come to on a series."""

    forecasts: np.ndarray  # NaN while it has none
    seconds: float
    memory: int


def validate(model: Any, series: Series) -> Outcome:
    """Forecasts every value before it is learnt. Gaps are filled with the value before, which all models can take."""
    forecasts, before = [], series.values[0]
    begun = time.perf_counter()
    for value in series.values:
        try:
            forecasts.append(float(model.forecast(horizon=1)[0]))
        except (IndexError, ValueError, ZeroDivisionError):  # HoltWinters, before it has seen two seasons
            forecasts.append(math.nan)
        before = before if math.isnan(value) else value
        model.learn_one(before)
    return Outcome(np.array(forecasts), time.perf_counter() - begun, len(pickle.dumps(model)))


def main() -> None:
    given = arguments("Forecasting real series one step ahead, by progressive validation.")
    for name in ("statsmodels", "deep_river"):
        if not is_installed(name):
            print(f"left out, because {name} is not installed: what needs it")
    shown: dict[str, tuple[Series, dict[str, np.ndarray]]] = {}
    for title, series in all_series(given.small).items():
        wanted = np.array(series.values)
        judged = np.arange(len(wanted)) >= 3 * series.season  # all have begun to forecast
        judged &= ~np.isnan(wanted)
        errors, rows, forecasts = {}, {}, {}
        for name, make in models(series.season).items():
            seeds = SEEDS if "LSTM" in name and not given.small else 1
            outcomes = [validate(make(seed), series) for seed in range(seeds)]
            errors[name] = float(np.mean([np.nanmean(abs(one.forecasts - wanted)[judged]) for one in outcomes]))
            seconds = np.mean([one.seconds for one in outcomes])
            rows[name] = f"{1e3 * seconds / len(wanted):.2f}", f"{outcomes[0].memory / 1000:.0f} kB"
            forecasts[name] = outcomes[0].forecasts
        best_first = sorted(errors, key=lambda name: errors[name])
        last = errors["the last value"]
        print(title)
        table = [(name, f"{errors[name]:.3g}", f"{errors[name] / last:.2f}", *rows[name]) for name in best_first]
        write_table(given.out / f"forecasting-{title.replace(' ', '-').lower()}.md", COLUMNS, table)
        shown[title] = (
            series,
            {name: forecasts[name] for name in forecasts if "Snap" in name or "season of lags" in name},
        )
    write_figure(given.out / "forecasting.svg", lambda figure: draw(figure, shown), size=(9.2, 2.2 * len(shown)))


def draw(figure: Any, shown: dict[str, tuple[Series, dict[str, np.ndarray]]]) -> None:
    """The end of each series with two of its forecasts."""
    all_axes = np.atleast_1d(figure.subplots(len(shown), 1))
    colours = (COLOURS["SnAp-1"], COLOURS["RTRL"])
    for axes, (title, (series, forecasts)) in zip(all_axes, shown.items(), strict=True):
        part = slice(-min(150, len(series.values)), None)
        places = np.arange(len(series.values))[part]
        axes.plot(places, series.values[part], color="#222222", linewidth=1.6, label="the series")
        for (name, found), colour in zip(forecasts.items(), colours, strict=True):
            axes.plot(places, found[part], color=colour, linewidth=1.1, label=name)
        low, high = np.nanmin(series.values[part]), np.nanmax(series.values[part])
        axes.set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
        axes.set_title(f"{title}: forecast one step ahead")
        axes.grid(True)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)


if __name__ == "__main__":
    main()
