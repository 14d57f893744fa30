"""snapgrad: training recurrent networks online."""

from importlib.metadata import version

from snapgrad import collection

with collection.paused():
    from snapgrad import analysis, tasks
    from snapgrad.algorithms.bptt import bptt
    from snapgrad.algorithms.frozen import frozen
    from snapgrad.algorithms.interface import Algorithm, Gradient, Info, Params, State
    from snapgrad.algorithms.kf_rtrl import kf_rtrl
    from snapgrad.algorithms.ok import ok
    from snapgrad.algorithms.rflo import rflo
    from snapgrad.algorithms.rtrl import rtrl
    from snapgrad.algorithms.sharded import shard
    from snapgrad.algorithms.snap import snap
    from snapgrad.algorithms.topk import snap_topk
    from snapgrad.algorithms.uoro import uoro
    from snapgrad.cells.adapt import AdaptedCell, cell
    from snapgrad.cells.base import Cell
    from snapgrad.cells.general import GeneralCell, Patterns
    from snapgrad.cells.gru import GRU
    from snapgrad.cells.lstm import LSTM
    from snapgrad.cells.stack import Stack, stack
    from snapgrad.cells.unit import UnitCell, UnitParams
    from snapgrad.cells.vanilla import Vanilla
    from snapgrad.costs import Cost, Costs, costs
    from snapgrad.evaluate import evaluate
    from snapgrad.generate import generate
    from snapgrad.kernels.select import backend_info
    from snapgrad.learner.online import OnlineLearner
    from snapgrad.persistence import load, save
    from snapgrad.pytorch import from_torch, to_torch
    from snapgrad.readouts import Readout
    from snapgrad.runs.loading import LoadedRun, load_run
    from snapgrad.sparsity import pruning, rewiring
    from snapgrad.sparsity.matrix import SparseMatrix, multiply
    from snapgrad.sparsity.pattern import Pattern
    from snapgrad.train import Carry, Progress, Trainer

__version__ = version("snapgrad")

__all__ = [
    "GRU",
    "LSTM",
    "AdaptedCell",
    "Algorithm",
    "Carry",
    "Cell",
    "Cost",
    "Costs",
    "GeneralCell",
    "Gradient",
    "Info",
    "LoadedRun",
    "OnlineLearner",
    "Params",
    "Pattern",
    "Patterns",
    "Progress",
    "Readout",
    "SparseMatrix",
    "Stack",
    "State",
    "Trainer",
    "UnitCell",
    "UnitParams",
    "Vanilla",
    "analysis",
    "backend_info",
    "bptt",
    "cell",
    "costs",
    "evaluate",
    "from_torch",
    "frozen",
    "generate",
    "kf_rtrl",
    "load",
    "load_run",
    "multiply",
    "ok",
    "pruning",
    "rewiring",
    "rflo",
    "rtrl",
    "save",
    "shard",
    "snap",
    "snap_topk",
    "stack",
    "tasks",
    "to_torch",
    "uoro",
]
