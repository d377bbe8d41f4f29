"""Compiles libllama for this processor, and finds out whether it is right and faster.

`localspec kernels` calls it. `llama.own_build` finds what was made here.
"""
