"""Pictures that people show a model."""
