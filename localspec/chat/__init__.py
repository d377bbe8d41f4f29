"""Messages to prompts, and conversations."""
