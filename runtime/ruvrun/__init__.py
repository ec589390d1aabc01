"""The runtime: one machine of a pipeline."""

__version__ = "0.1.0"
