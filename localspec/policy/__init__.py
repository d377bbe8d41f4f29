"""How much to draft, and with how many threads: what decodes cost here, and what is accepted."""
