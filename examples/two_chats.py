"""Two chats in two threads on one engine. queue=True: whoever comes second waits in line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import localspec

QUESTIONS = ("Tell me a story about a fox.", "Another one!")


def talk(chat: localspec.Chat) -> list[str]:
    """What the chat answers to the questions, one after the other."""
    return [
        chat.send(question, queue=True, max_tokens=60).reply().text for question in QUESTIONS
    ]


def main(engine: localspec.Engine) -> list[list[str]]:
    """What each of the two says."""
    terse, friendly = (engine.chat(system=f"You are {how}.") for how in ("terse", "friendly"))
    with ThreadPoolExecutor(max_workers=2) as threads:
        return list(threads.map(talk, (terse, friendly)))


if __name__ == "__main__":
    with localspec.load() as engine:
        for answers in main(engine):
            print(*answers, sep="\n", end="\n\n")
