"""The demo pair's training text: every conversation is written or generated here."""
