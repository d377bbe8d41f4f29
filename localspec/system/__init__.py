"""This machine and its operating system: memory, cores, files, threads and forks."""
