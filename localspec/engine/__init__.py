"""The owner of the models, the right to use them, and the choice of proposers."""
