"""GGUF headers, read with bounds, and what they say of a model.

What is special about an architecture is its line in `architectures`.
"""
