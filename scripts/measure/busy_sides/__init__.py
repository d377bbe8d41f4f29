"""Sides that decode in turn, each in a process of its own, and what keeps the machine busy."""
