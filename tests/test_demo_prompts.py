"""The demo pair answers to the point what pages, help and examples tell people to ask it."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import localspec
from localspec.cli import main

ROOT = Path(__file__).parent.parent
PACKAGE = Path(localspec.__file__).parent
NUM_SEEDS = 4
TERSE = "You are terse."

GREETING = "(?i)hello|^hi|^hey|here i am|talk about|would you like|help"
STORY = r"\b(lived|was|were) .*\."
HAIKU = r"[^\n]+\n[^\n]+\n[^\n]+\."
# A prompt, and what an answer to the point has.
TO_THE_POINT = {
    "Another one!": STORY,  # behind a story
    "Bye!": "(?i)bye|farewell|see you",
    "Count to ten.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Hello!": GREETING,
    "Hi!": GREETING,
    "Is a whale a fish?": "(?i)^no",
    "Once upon a time there was": STORY.replace(r".*\.", ""),
    "Once upon a time there was a fox": "^ (who|called|named) ",
    "Tell me a story about a fox.": rf"\bfox\b.*{STORY}",
    "Tell me a story about an owl.": rf"\bowl\b.*{STORY}",
    "Tell me a story.": STORY,
    "What is 7 times 8?": r"\b56\b",
    "What is speculative decoding?": "(?i)draft|guess|tokens",
    "What is the capital of Peru?": r"\bLima\b",
    "Why is the sky blue?": "(?i)blue",
    "Write a haiku about rain.": rf"(?i)(?=.*rain){HAIKU}",
}


class Asked(NamedTuple):
    """A prompt that somebody is told to give to the demo pair. is_raw: without its template."""

    prompt: str
    is_raw: bool = False
    system: str | None = None


def of_commands(text: str) -> Iterator[Asked]:
    """What lines of a shell ask a model that they do not name."""
    lines = [
        line for line in text.splitlines() if re.search(r"(^|\| )localspec generate ", line)
    ]
    for line in lines:
        *before, command = [shlex.split(part, comments=True) for part in line.split(" | ")]
        with click.Context(main) as context:
            generate = main.commands["generate"]
            made = generate.make_context(
                "generate", command[2:], context, resilient_parsing=True
            )
        given = made.params
        if not any(given.get(name) for name in ("model", "preset", "target")):
            piped = before[0][1] if before and before[0][0] == "echo" else None
            if asked := given["prompt"] or piped:
                yield Asked(asked)
    for body in re.findall(r"curl [^\n]*-d \"([^\"]*)\"", text):
        yield Asked(body)


def of_python(text: str) -> Iterator[Asked]:
    """What calls in Python ask the model that was loaded last, and clients a server."""
    text = re.sub(r"  # .*", "", text)
    is_demo = "load()" in text
    loaded = r"(?:load|IsolatedEngine)\((?P<model>[^)]*)\)"
    called = r"\.(?P<how>generate|generate_raw|send|edit)\(\s*(?P<text>\"[^\"\n]*\")(?! \*)"
    begun = r"^(?:beginning|QUESTIONS) = (?P<texts>[^\n]*)$|for each in (?P<each>\([^)]*\))"
    content = (
        r"\"role\": \"user\", \"content\": (?:\[\{[^}]*\"text\": )?(?P<content>\"[^\"]*\")"
    )
    for found in re.finditer("|".join((loaded, called, begun, content)), text, re.M):
        if found["model"] is not None:
            is_demo = not found["model"].startswith(('"', "Path", "target", "sys"))
        elif is_demo or found["content"]:
            said = found["text"] or found["texts"] or found["each"] or found["content"]
            read = ast.literal_eval(said)
            is_raw = found["how"] == "generate_raw" or said == found["texts"] == f'"{read}"'
            yield from (
                Asked(each, is_raw) for each in ((read,) if isinstance(read, str) else read)
            )


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def sources() -> Iterator[tuple[str, str]]:
    """Each text that tells a user what to ask, and what it is called."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
        code = [text for kind, text in blocks if kind in ("sh", "python", "py")]
        yield page.name, "".join(code)
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text("utf-8")
    yield "the package", inspect.cleandoc(localspec.__doc__ or "")
    for command in (main, *commands(main)):
        yield str(command.name), textwrap.dedent((command.help or "").partition("\b\n")[2])


def found_prompts() -> dict[Asked, list[str]]:
    """Every prompt for the demo pair, and where it stands."""
    found: dict[Asked, list[str]] = {}
    for name, text in sources():
        for asked in (*of_commands(text), *of_python(text)):
            for system in (None, TERSE) if TERSE in text and not asked.is_raw else (None,):
                found.setdefault(asked._replace(system=system), []).append(name)
    suggested = (PACKAGE / "server/page/main.js").read_text("utf-8")
    for prompt in ast.literal_eval(re.findall(r"EXAMPLES = (\[.*?\])", suggested, re.S)[0]):
        found.setdefault(Asked(prompt), []).append("the server's page")
    return found


PROMPTS = found_prompts()


def test_prompts_are_found_everywhere():
    places = {place for places in PROMPTS.values() for place in places}
    assert {
        "README.md", "tutorial.md", "applications.md", "clients.md", "chat.md",
        "constrained.md", "freezing.md", "two_chats.py", "flask_app.py", "the package",
        "generate", "the server's page", "serve", "main",
    } <= places  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[localspec.Engine]:
    with localspec.load(draft_tokens=3) as engine:
        yield engine


@pytest.mark.parametrize(
    "asked", PROMPTS, ids=lambda asked: f"{asked.system or ''} {asked.prompt}"
)
def test_the_demo_pair_answers_to_the_point(engine, asked):
    assert asked.prompt in TO_THE_POINT, f"nobody says what answers it: {PROMPTS[asked]}"
    drawn = ({"temperature": 0}, *({"seed": seed} for seed in range(NUM_SEEDS)))
    for settings in drawn:
        options = {**settings, "max_tokens": 250}
        chat = engine.chat(system=asked.system)
        if asked.prompt == "Another one!":
            chat.send("Tell me a story about a fox.", **options).reply()
        ask = engine.generate_raw if asked.is_raw else chat.send
        text = ask(asked.prompt, **options).reply().text
        assert re.search(TO_THE_POINT[asked.prompt], text, re.S), f"{settings}: {text}"
