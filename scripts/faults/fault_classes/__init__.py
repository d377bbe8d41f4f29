"""Classes of faults, one a module: what is tried to break localspec, and what has to hold."""
