"""The commands of the command line, one file each: a dataclass of options with a `run`."""
