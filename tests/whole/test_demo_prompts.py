"""The demo pair answers to the point what pages, help and examples tell people to ask it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import localspec

ROOT = Path(__file__).parents[2]
STORY = r"\b(lived|was|were) .*\."
# A prompt, and what an answer to the point has.
TO_THE_POINT = {
    "Another one!": STORY,  # behind a story
    "Hello!": "(?i)hello|^hi|^hey|here i am|talk about|would you like|help",
    "Hi!": "(?i)hello|^hi|^hey|here i am|talk about|would you like|help",
    "Is a whale a fish?": "(?i)^no",
    "Once upon a time there was": r"\b(lived|was|were) ",
    "Tell me a story about a fox.": rf"\bfox\b.*{STORY}",
    "Tell me a story about an owl.": rf"\bowl\b.*{STORY}",
    "Tell me a story.": STORY,
    "What is 7 times 8?": r"\b56\b",
    "What is speculative decoding?": "(?i)draft|guess|tokens",
    "What is the capital of Peru?": r"\bLima\b",
    "Why is the sky blue?": "(?i)blue",
    "Write a haiku about rain.": r"(?i)(?=.*rain)[^\n]+\n[^\n]+\n[^\n]+\.",
}
# Kept to a schema by another model, or no question.
NOT_ASKED = {
    "word ",
    "Write to my landlord.",
    "Tell me about a fox.",
    "A fox and a hen. ",
    "You are terse.",
    "question",
}
ASKS = r'localspec generate |\.(?:send|generate|generate_raw|edit)\(\s*|"content": |curl .* -d '


def found_prompts():
    paths = [
        ROOT / "README.md",
        *(set(ROOT.glob("docs/*.md")) - {ROOT / "docs/tools.md", ROOT / "docs/pictures.md"}),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("localspec/cli/**/*.py"),
        ROOT / "localspec/__init__.py",
    ]
    text = "\n".join(path.read_text("utf-8") for path in paths)
    main = (ROOT / "localspec/server/page/main.js").read_text("utf-8")
    suggested = ast.literal_eval(re.findall(r"EXAMPLES = (\[.*?\])", main, re.S)[0])
    return {*re.findall(rf'(?:{ASKS})"([^"\n{{]+)"', text), *suggested}


def test_each_prompt_on_pages_in_help_and_in_examples_is_known():
    found = found_prompts() - NOT_ASKED
    assert found == TO_THE_POINT.keys()


@pytest.fixture(scope="module")
def engine():
    with localspec.load(draft_tokens=3) as engine:
        yield engine


@pytest.mark.parametrize("prompt", TO_THE_POINT)
def test_the_demo_pair_answers_to_the_point(engine, prompt):
    for settings in ({"temperature": 0}, {"seed": 0}, {"seed": 1}):
        options = {**settings, "max_tokens": 250}
        chat = engine.chat()
        if prompt == "Another one!":
            chat.send("Tell me a story about a fox.", **options).reply()
        ask = engine.generate_raw if prompt.startswith("Once") else chat.send
        text = ask(prompt, **options).reply().text
        assert re.search(TO_THE_POINT[prompt], text, re.S), f"{settings}: {text}"
