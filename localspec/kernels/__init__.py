"""Compiles libllama for this processor, and finds out whether it is right and faster."""
