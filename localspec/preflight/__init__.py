"""Facts about a pair before it is loaded: its memory, whether it fits and pays."""
