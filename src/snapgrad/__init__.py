"""snapgrad: training recurrent networks online."""

from importlib.metadata import version

from snapgrad import tasks
from snapgrad.algorithms.bptt import bptt
from snapgrad.algorithms.frozen import frozen
from snapgrad.algorithms.interface import Algorithm, Gradient, Info, Params, State
from snapgrad.algorithms.rflo import rflo
from snapgrad.algorithms.rtrl import rtrl
from snapgrad.algorithms.snap import snap
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
from snapgrad.kernels.select import backend_info
from snapgrad.readouts import Readout
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
    "backend_info",
    "bptt",
    "cell",
    "costs",
    "frozen",
    "multiply",
    "rflo",
    "rtrl",
    "snap",
    "stack",
    "tasks",
    "uoro",
]
