"""The owner of the models: which answer runs in which lane, and whose caches stay.

An answer waits for a lane, a thread makes its prompt, and the worker's thread computes. Lanes
of several answers share decodes. Texts without a lane are parked in memory, or saved to disk.
"""
