"""`localspec chat` in tmux, which wraps lines again on a resize: whole screens, and modes."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import textwrap

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)
if shutil.which("tmux") is None:
    pytest.skip("tmux is not installed", allow_module_level=True)

import localspec
from tmux import Tmux, num_prompts

pytestmark = pytest.mark.process

MAX_TOKENS = 24
GREEDY = ("--temperature", "0", "--draft-tokens", "3")
ENDLESS = (*GREEDY, "--ignore-eos")
TERSE = (*GREEDY, "--max-tokens", str(MAX_TOKENS))
STORY = "Tell me a story about a fox."
HELP = "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves."
# What a run's speed decides; the words around the figures are compared.
FIGURES = {
    "<status>": r"# tokens \(# drafted\) · # tokens/s(?: · context # full)?",
}


@pytest.fixture
def chat(tmp_path):
    """Starts a chat with options, ready for the first message. All are ended at the end."""
    opened = []

    def start(*arguments, **size):
        terminal = Tmux(tmp_path, "chat", *arguments, **size)
        opened.append(terminal)
        terminal.wait_for_prompt(1)
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def answers(engine):
    """What comes of a conversation's messages: the library's greedy answers, and for each that
    was cut off the line that says so."""

    def ask(*messages, max_tokens=MAX_TOKENS, **more):
        sampling = dataclasses.replace(engine.sampling, temperature=0.0, **more)
        conversation = engine.chat()
        more = "--max-tokens; in a chat /continue, or /set max_tokens"
        cut = f"\nCut off after {max_tokens} tokens. For more: {more}."
        replies = [
            conversation.send(message, sampling=sampling, max_tokens=max_tokens).reply()
            for message in messages
        ]
        return [reply.text + cut * (reply.finish_reason == "length") for reply in replies]

    return ask


def stopped_after(engine: localspec.Engine, num_tokens: int) -> str:
    """What an endless answer to STORY says up to a token at which it is stopped.

    Not of an answer that may have no more: its last steps are shorter, and after the end of a
    text there are rows where two tokens are as good as tied, which then fall otherwise.
    """
    sampling = dataclasses.replace(engine.sampling, temperature=0.0, ignore_eos=True)
    with engine.chat().send(STORY, sampling=sampling) as stream:
        while num_tokens > 0:
            num_tokens -= len(next(stream).token_ids)
    return stream.reply().text


def wrapped(text: str, columns: int = 80) -> str:
    """Plain text in lines that end before the last column."""
    return "\n".join(
        textwrap.fill(line, columns - 1, break_on_hyphens=False) for line in text.split("\n")
    )


def greeting(engine: localspec.Engine, columns: int = 80) -> str:
    """What a chat begins with."""
    return wrapped(f"{engine.description}.\n{HELP}", columns) + "\n"


def turn(message: str, answer: str, columns: int = 80) -> str:
    """A message as it stands on the screen, and what comes of it."""
    return f"\n> {message}\n{wrapped(answer, columns)}\n<status>\n"


def settled(text: str) -> str:
    """The text without the figures that differ from run to run."""
    for name, words in FIGURES.items():
        pattern = words.replace("#", r"[\d.]+%?").replace(" ", r"\s+")
        text = re.sub(rf"^{pattern}$", name, text, flags=re.MULTILINE)
    return text


def begin_story(terminal: Tmux) -> None:
    """Ask for the story, and wait for its first words."""
    terminal.type(STORY)
    terminal.press("Enter")
    terminal.wait_for(lambda text: len(words_of_answer(text)) > 10)


def words_of_answer(text: str) -> list[str]:
    """What was said to the story's prompt, however it was wrapped."""
    return settled(text).partition(f"> {STORY}\n")[2].partition("<status>")[0].split()


def test_answers_and_nothing_else_are_on_the_screen(chat, engine, answers):
    """In a narrow window; also of wide, joined and right-to-left characters."""
    wide = "日本語んです 👍🏽 👩‍👩‍👧 مرحبا naïve"
    terminal = chat(*TERSE, columns=40, rows=60)
    terminal.say(STORY)
    terminal.type("日本語です")
    terminal.press("Left", "Left")
    terminal.type("ん")
    terminal.press("End")
    terminal.type(wide.removeprefix("日本語んです"))
    terminal.press("Enter")
    terminal.wait_for_prompt(3)
    first, second = answers(STORY, wide)
    expected = greeting(engine, 40) + turn(STORY, first, 40) + turn(wide, second, 40) + "\n>"
    assert settled(terminal.screen()) == expected


def resize_and_wait(terminal: Tmux, columns: int, message: str) -> None:
    """Until what is typed is drawn again: what tmux wraps by itself may look the same."""
    num_written, start = len(terminal.written()), message[:20].encode()
    terminal.resize(columns)
    terminal.wait_for(lambda _text: start in terminal.written()[num_written:])


def test_a_resize_and_back_while_the_prompt_waits(chat, engine, answers):
    """What is typed is drawn again at each width, once, and is sent as it was typed."""
    message = "Tell me another story about an owl that lives in a hollow oak and has a cape."
    at_forty = (
        "> Tell me another story about an owl tha\n"
        "  t lives in a hollow oak and has a cape\n"
        "  ."
    )
    terminal = chat(*TERSE)
    before = terminal.say(STORY)
    terminal.type(message)
    terminal.wait_for(lambda text: text == f"{before} {message}")
    for columns, typed in ((40, at_forty), (80, f"> {message}")) * 2:
        resize_and_wait(terminal, columns, message)
        text = terminal.wait_for(lambda text, typed=typed: text.endswith(f"\n\n{typed}"))
        assert num_prompts(text) == 2
    terminal.wait_for(lambda text: text == f"{before} {message}")
    terminal.press("Enter")
    terminal.wait_for_prompt(3)
    first, second = answers(STORY, message)
    expected = greeting(engine) + turn(STORY, first) + turn(message, second) + "\n>"
    assert settled(terminal.text()) == expected


def test_a_resize_while_an_answer_comes_and_what_the_chat_leaves(chat, engine):
    """The words stay in order, and nothing but line ends is different."""
    terminal = chat(*ENDLESS)
    begin_story(terminal)
    for columns in (40, 80):
        terminal.resize(columns)
        num_words = len(words_of_answer(terminal.text()))
        terminal.wait_for(lambda text, n=num_words: len(words_of_answer(text)) > n + 10)
    terminal.press("C-c")
    raw = terminal.wait_for_prompt(2)
    text = settled(raw)
    assert text.startswith(greeting(engine) + f"\n> {STORY}\n")
    assert text.endswith("\n(stopped)\n<status>\n\n>")
    num_tokens = int(re.search(r"^(\d+) tokens", raw, re.MULTILINE)[1])
    said = stopped_after(engine, num_tokens)
    assert words_of_answer(text) == [*said.split(), "(stopped)"]
    terminal.press("C-d")
    terminal.wait_for(lambda text: text.endswith("\nexit 0"))
    flags = "cursor_flag=1 alternate_on=0 insert_flag=0 keypad_flag=0 keypad_cursor_flag=0"
    assert terminal.flags() == f"{flags} mouse_any_flag=0 origin_flag=0 wrap_flag=1"
    before, after = terminal.shell_modes()
    assert after == before
    terminal.paste("pasted\n")  # once echoed, once by cat, and nothing around it
    terminal.wait_for(lambda text: text.endswith("\nexit 0\npasted\npasted"))
