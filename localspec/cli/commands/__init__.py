"""The commands, each in a module of its own. What they share is outside of this folder."""
