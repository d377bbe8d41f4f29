"""Tools that a model may call, and how each family of models writes a call."""
