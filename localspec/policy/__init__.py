"""How much to draft, and with how many threads: what decodes cost, and what is accepted."""
