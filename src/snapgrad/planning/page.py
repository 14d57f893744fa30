"""The plan as one self-contained HTML page with sliders: page.html, with the formulas of formulas.js inside."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def page(settings: dict[str, Any]) -> str:
    """The page whose sliders begin at these settings: the options of `snapgrad plan`, and a device."""
    import jinja2

    folder = files("snapgrad.planning")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        folder.joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(formulas=folder.joinpath("formulas.js").read_text(encoding="utf-8"), settings=settings)
