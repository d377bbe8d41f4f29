"""A chat on a terminal in ten lines. An empty line ends it."""

import localspec

with localspec.load() as engine:
    chat = engine.chat()
    while question := input("> "):
        for piece in chat.send(question):
            print("" if piece.is_thought else piece.text, end="", flush=True)
        print()
