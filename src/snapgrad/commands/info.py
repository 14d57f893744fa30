"""`snapgrad info`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from snapgrad import machine


@dataclass(frozen=True)
class Info:
    """Tell which backend runs here, on what, with which versions."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Prints it."""
        about = machine.describe()
        if self.json:
            print(json.dumps(about))
        else:
            for name, value in about.items():
                if value != "":  # nothing to say, as of the reason for a backend that was not passed over
                    print(f"{name:13} {value}")
