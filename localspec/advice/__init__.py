"""What to say of a pair before it is loaded: does it fit and pay, and which preset to take.

`explain` and `models` show it.
"""
