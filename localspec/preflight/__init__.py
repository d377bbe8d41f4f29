"""What is known about a pair before it is loaded: what it takes, whether it fits and pays."""
