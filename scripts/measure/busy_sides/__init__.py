"""Sides that decode in turn, each in its own process, and programs that load the machine."""
