"""What the comparisons with other runtimes share: contenders, rounds, tables."""
