"""Compiles libllama for this processor, and finds out whether it is right and faster.

Behind `localspec kernels`. `llama.own_build` finds what was made here.
"""
