"""Tasks: on what data a network is trained."""

from snapgrad.tasks.base import PADDING, Task, Window
from snapgrad.tasks.characters import Crops
from snapgrad.tasks.copy import Copy
from snapgrad.tasks.corpora import Corpus, corpus
from snapgrad.tasks.streams import Streams

__all__ = ["PADDING", "Copy", "Corpus", "Crops", "Streams", "Task", "Window", "corpus"]
