"""The commands, each in a module of its own, which only `localspec.cli` imports."""
