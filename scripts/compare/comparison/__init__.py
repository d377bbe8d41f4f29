"""The common part of comparisons with other runtimes: contenders, rounds, tables."""
