"""`snapgrad plan`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from snapgrad import arguments, machine
from snapgrad.bench import rates, timing
from snapgrad.files import write_whole
from snapgrad.memory import readable
from snapgrad.planning import mesh as meshes
from snapgrad.planning.counted import counts
from snapgrad.planning.expectations import Counts, Network
from snapgrad.planning.mesh import Device, Load, Mesh
from snapgrad.terminal import print_table

ROUNDS = 3  # of measuring the rates


@dataclass(frozen=True)
class Plan:
    """Say what SnAp would need on given devices: memory, flops, traffic and time of a step, and what mesh fits.

    A device is a machine like this one, unless its rates are given. The time is that of the recurrent part with an
    update at every step: without the readout, the optimiser and the activations.
    """

    cell: Literal["vanilla", "gru", "lstm"] = "gru"
    """The recurrent cell."""

    units: int = 128
    """Its units."""

    inputs: int = 4
    """Width of its input."""

    sparsity: float = 0.75
    """Share of its weights that do not exist, chosen at random."""

    order: int | Literal["exact"] = 2
    """Order of SnAp; exact is RTRL."""

    batch: int = 16
    """Sequences side by side."""

    devices: int = 1
    """So many of them."""

    window: int = 128
    """Steps that BPTT keeps a history of."""

    gflops: float | None = None
    """Billions of floating-point operations that a device does in a second; by default measured here."""

    gbs: float | None = None
    """Gigabytes that a device reads and writes in a second; by default measured here."""

    network: float = 1.25
    """Gigabytes that a device receives in a second; 1.25 is 10 Gbit/s."""

    memory: float | None = None
    """GiB that a device has; by default what this machine has."""

    page: Path | None = None
    """Also write one self-contained HTML page with sliders to this file."""

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        """Counts, measures, and prints the plan."""
        for name in ("units", "inputs", "batch", "devices", "window"):
            arguments.positive_integer(name, getattr(self, name))
        arguments.sparsity(self.sparsity)
        order = None if self.order == "exact" else self.order
        arguments.order(order)
        for name in ("gflops", "gbs", "network", "memory"):
            if getattr(self, name) is not None:
                arguments.positive_number(name, getattr(self, name))
        if self.page is not None and not self.page.parent.is_dir():
            raise ValueError(f"`page` must be a file in a folder that exists, got {str(self.page)!r}")
        shape = Network(self.cell, self.units, self.inputs, self.sparsity)
        found, drawn = counts(shape, order)
        most = int(found.blocks) * self.batch
        if self.devices > most:
            raise ValueError(
                f"`devices` must be an integer <= {most}, one for every block of J and lane of the batch, "
                f"got {self.devices}"
            )
        device = self._device()
        mesh = meshes.fastest(found, self.batch, self.devices, device)
        if mesh is None:
            raise ValueError(
                f"`devices` must be a product of a divisor of `batch`, {self.batch}, and a number of blocks, "
                f"at most {int(found.blocks)}, got {self.devices}"
            )
        if self.page is not None:
            from snapgrad.planning.page import page

            write_whole(self.page, page(self._settings(device)).encode())
        self._show(found, drawn, mesh, device)

    def _device(self) -> Device:
        """As given, or as measured here."""
        gflops, gbs = self.gflops, self.gbs
        if gflops is None or gbs is None:
            print("measuring this machine", file=sys.stderr)
            here = rates.rates(timing.medians(rates.programs(), ROUNDS))
            gflops = here.flops / 1e9 if gflops is None else gflops
            gbs = here.bytes / 1e9 if gbs is None else gbs
        memory = machine.memory_bytes() if self.memory is None else self.memory * 2**30
        return Device(gflops * 1e9, gbs * 1e9, self.network * 1e9, memory)

    def _settings(self, device: Device) -> dict[str, Any]:
        """Where the sliders of the page begin."""
        names = ("cell", "units", "inputs", "sparsity", "order", "batch", "devices", "window")
        return {name: getattr(self, name) for name in names} | device._asdict()

    def _show(self, found: Counts, drawn: bool, mesh: Mesh, device: Device) -> None:
        one = meshes.load(found, self.batch, Mesh(1, 1), device)
        each = meshes.load(found, self.batch, mesh, device)
        least = meshes.smallest(found, self.batch, device)
        bptt = Load(meshes.bptt_memory(found, self.batch, self.window), self.batch * found.bptt, 0, 0, 0)
        if self.json:
            answer = {
                "counts": {**found._asdict(), "drawn": drawn},
                "device": device._asdict(),
                "one_device": one._asdict(),
                "mesh": mesh._asdict(),
                "each_device": each._asdict(),
                "fits": each.memory <= device.memory,
                "smallest_mesh": None if least is None else least._asdict(),
                "bptt": {"memory": bptt.memory, "flops": bptt.flops},
            }
            print(json.dumps(answer))
            return
        name = "RTRL" if self.order == "exact" else f"SnAp-{self.order}"
        title = f"{name} on {self.cell} {self.units}, {100 * self.sparsity:.4g} % sparse, batch {self.batch}, float32"
        columns = ["", "on one device", *([f"each of {mesh.devices}: {mesh}"] if mesh.devices > 1 else []), "BPTT"]
        shown = [one, *([each] if mesh.devices > 1 else []), bptt]
        print_table(title, columns, [(word, *(text(load) for load in shown)) for word, text in ROWS.items()])
        share = found.kept / (found.states * found.params)
        how = "counted on a random pattern" if drawn else "expected of random patterns"
        print(f"J: {found.kept:,.0f} entries, {100 * share:.3g} % of all, in {found.blocks:,.0f} blocks; {how}")
        print(f"against BPTT over {self.window} steps: {one.flops / bptt.flops:.3g} x the flops of a step, ", end="")
        print(f"{one.memory / bptt.memory:.3g} x the memory")
        print(f"{_fitting(least)} {readable(device.memory)} a device")
        print(
            f"rates of a device: {device.flops / 1e9:.4g} GFLOP/s, {device.bytes / 1e9:.4g} GB/s of memory, "
            f"{device.network / 1e9:.4g} GB/s of network; half of what they allow is expected to be reached"
        )
        if self.page is not None:
            print(f"page: {self.page.resolve()}")


ROWS: dict[str, Callable[[Load], str]] = {
    "memory": lambda load: readable(load.memory),
    "flops a step": lambda load: f"{load.flops:.3g}",
    "J read and written a step": lambda load: readable(load.traffic) if load.traffic else "",
    "received over the network a step": lambda load: readable(load.network) if load.network else "",
    "expected time of a step": lambda load: _duration(load.seconds) if load.seconds else "",
}


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _fitting(least: Mesh | None) -> str:
    if least is None:
        return "no mesh fits, however many devices it has, with"
    devices = "one device is enough" if least.devices == 1 else f"the smallest mesh that fits is {least}"
    return f"{devices}, with"
