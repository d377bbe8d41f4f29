"""Who owns the models, who may use them, and who proposes."""
