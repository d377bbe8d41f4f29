"""GGUF headers, read with bounds."""
