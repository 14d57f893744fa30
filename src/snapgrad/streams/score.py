"""Answers to the rows of a stream, and how wrong they were so far."""

from __future__ import annotations

import math
from typing import Any

from snapgrad.streams.models import Classification, Regression, as_number
from snapgrad.streams.rows import Row


class Score:
    """Rows that were answered, and how wrong the answers were."""

    def __init__(self) -> None:
        self.rows, self.judged, self.total = 0, 0, 0.0

    def answer(self, row: Row, model: Regression | Classification) -> dict[str, Any]:
        """Predicts, then learns; what is said of a row."""
        self.rows += 1
        prediction: Any
        try:
            if isinstance(model, Regression):
                if isinstance(row.y, str):
                    wanted = "a number, or nothing (a label, if `labels` is set)"
                    raise TypeError(f"`target` must be {wanted}, got {row.y!r}")
                number = as_number(row.y)
                prediction = model.learn(row.x, number)
                wrong = abs(prediction - number)
            else:
                shares = model.learn(row.x, row.y)
                prediction = max(shares, key=lambda label: shares[label]) if shares else None
                wrong = math.nan if row.y is None or row.y != row.y else float(prediction != row.y)
        except TypeError as error:
            raise ValueError(f"row {self.rows}: {error}") from None
        if math.isfinite(wrong):
            self.judged, self.total = self.judged + 1, self.total + wrong
        return {
            "row": self.rows,
            "prediction": prediction,
            "target": None if isinstance(row.y, float) and not math.isfinite(row.y) else row.y,  # JSON has none
            "error": self.error,
        }

    @property
    def error(self) -> float | None:
        """The mean over the rows that had a target."""
        return self.total / self.judged if self.judged else None

    def summary(self, rate: float) -> str:
        """One line for a person."""
        error = "no targets" if self.error is None else f"error {self.error:.5g}"
        return f"{self.rows:,} rows, {error}, {rate:,.0f} rows/s"

    def state(self) -> list[float]:
        """What it goes on from."""
        return [self.rows, self.judged, self.total]
