"""An engine in a process of its own, so that a native crash ends no application."""
