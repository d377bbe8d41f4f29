"""An engine in a process of its own, and what is measured of one there."""
