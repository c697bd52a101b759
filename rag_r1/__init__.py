"""RAG-R1: train search agents that think, ask several things at once, read, and answer."""

__version__ = "0.1.0"
