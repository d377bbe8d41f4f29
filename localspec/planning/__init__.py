"""Where a pair goes before it is loaded: its memory, its devices, and whether it fits."""
