"""Tasks: on what data a network is trained."""

from snapgrad.tasks.adding import Adding
from snapgrad.tasks.base import PADDING, Numbers, NumberTask, SymbolTask, Task, Window
from snapgrad.tasks.characters import Crops
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.corpora import Corpus, corpus
from snapgrad.tasks.mackey_glass import MackeyGlass
from snapgrad.tasks.streams import Streams

__all__ = [
    "PADDING",
    "Adding",
    "Copy",
    "Corpus",
    "Crops",
    "MackeyGlass",
    "NumberTask",
    "Numbers",
    "Streams",
    "SymbolTask",
    "Task",
    "Window",
    "corpus",
]
