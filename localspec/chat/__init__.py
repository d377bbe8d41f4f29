"""Messages → prompts, and conversations: their turns, sessions, pictures and calls of tools.

No message becomes a control token (`control_guard`), and a template may take only so much
(`sandbox`).
"""
