"""Turns leave a full context: as many as one by one would, found with a few renderings."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import jinja2
import pytest

import inside
from localspec.chat.chat import Chat, ChatRecord
from localspec.chat.prompt import PromptMaker
from localspec.chat.template import BUILT_IN, ChatTemplate
from localspec.chat.turns import MIN_ANSWER_TOKENS, num_to_forget
from localspec.errors import ContextError
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.cancellation import never
from localspec.tools.tool import ToolUse
from prompts import NoModels, prompt_behind

FOLDER = Path(__file__).parents[1] / "templates"
TEMPLATES = {
    name: BUILT_IN.get(name) or (FOLDER / f"{name}.jinja").read_text()
    for name in ("chatml", "Qwen-Qwen3-0.6B", "openai-gpt-oss-120b")
}
WORDS = ("fox ", "the ", "Überraschung ", "狐狸", "x=1;\n", "<|im_end|>", "\u200b", "7")
MOST_RENDERINGS = 16  # of a search, whatever the texts


def make_room(chat, begun):
    """The prompt of the chat's next answer, and how many oldest turns leave for it."""
    source = ChatRecord(chat, begun, inside.turns(chat), AnswerOptions()).source()
    made = source.make(inside.workshop(chat), never)
    return made.prompt, made.num_dropped_turns


def turns_of(rng, number):
    """Messages of unlike lengths and scripts."""

    def text():
        words = rng.choices(WORDS, k=rng.randrange(1, 4))
        return "".join(rng.choices(words, k=int(rng.paretovariate(0.8)) % 300 + 1))

    return [
        {"role": role, "content": text()}
        for _ in range(number)
        for role in ("user", "assistant")
    ]


def plain_turns(number):
    """As in a chat about numbers."""
    said = "Number {} is a fine number. A fox counted to it once, and told the owl about it."
    return [
        {"role": role, "content": text.format(i)}
        for i in range(number)
        for role, text in (("user", "Tell me about number {}."), ("assistant", said))
    ]


@pytest.fixture
def rendered(monkeypatch):
    """A list that grows by the number of messages of every rendering."""
    sizes = []
    render = ChatTemplate.render

    def counted(self, messages, is_cancelled=never, **options):
        sizes.append(len(messages))
        return render(self, messages, is_cancelled, **options)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    return sizes


def one_by_one(chat, question, capacity):
    """How many leave if each is tried in turn, as it is defined; and the prompt."""
    turns = inside.turns(chat)
    prompt = prompt_behind(chat, turns, question)
    if len(prompt.tokens) + min(MIN_ANSWER_TOKENS, capacity // 4) <= capacity:
        return 0, prompt
    number = 0
    while number < len(turns) and len(prompt.tokens) > capacity // 2:
        number += 1
        prompt = prompt_behind(chat, turns[number:], question)
    return number, prompt


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_many_turns_leave_as_one_by_one_and_the_rest_is_rendered(
    name, demo_vocabulary, rendered
):
    """For texts of all kinds, and contexts from tight to roomy."""
    rng = random.Random(name)
    numbers = set()
    for _ in range(8):
        engine = NoModels(demo_vocabulary, rng.choice([700, 1000, 2048, 6000]))
        chat = Chat(engine, system=rng.choice([None, "Be brief."]), template=TEMPLATES[name])
        chat.replace([*chat.messages, *turns_of(rng, rng.randrange(60))])
        question = {"role": "user", "content": "Why? " * rng.choice([1, 1, 20])}
        number, expected = one_by_one(chat, question, engine.context_length)
        del rendered[:]
        prompt, num_leaving = make_room(chat, (question,))
        assert len(rendered) <= MOST_RENDERINGS
        assert (num_leaving, prompt) == (number, expected)
        kept = [message for turn in inside.turns(chat)[number:] for message in turn]
        system = [{"role": "system", "content": chat.system}] if chat.system else []
        maker = PromptMaker(demo_vocabulary, TEMPLATES[name], think=True)
        assert prompt == maker.prompt([*system, *kept, question], ToolUse(), never)
        numbers.add(number)
    assert len(numbers) > 2


def test_a_question_that_fits_alone_is_asked_alone(demo_vocabulary):
    chat = Chat(NoModels(demo_vocabulary, 1000), template="chatml")
    chat.replace(plain_turns(50))
    question = {"role": "user", "content": "word " * 700}
    prompt, number = make_room(chat, (question,))
    assert number == 50
    assert 700 < len(prompt.tokens) < 1000
    with pytest.raises(ContextError, match=r"prompt of 1\d\d\d tokens; the context holds 1000"):
        chat.prompt_tokens("word " * 1000)


@pytest.mark.parametrize("seed", range(20))
def test_sizes_may_say_nothing_about_the_tokens(seed):
    """The search then still ends soon, with the very number that is defined."""
    rng = random.Random(seed)
    number = rng.randrange(1, 900)
    sizes = [rng.choice([0, 1, 50, 10_000]) for _ in range(number)]
    tokens = [rng.choice([0, 1, 7, 3000]) for _ in range(number)]
    capacity = rng.randrange(64, 200_000)
    asked = []

    def length(num_leaving):
        asked.append(num_leaving)
        return 9 + sum(tokens[num_leaving:])

    fewest = next(n for n in range(number + 1) if length(n) <= capacity // 2 or n == number)
    del asked[:]
    expected = 0 if length(0) <= capacity else fewest
    assert num_to_forget(sizes, length, capacity, capacity // 2) == expected
    assert len(set(asked)) < 40


def test_a_task_that_is_cancelled_makes_no_prompt(engine, monkeypatch):
    """And the conversation goes on. The template writes it in hundreds of pieces."""
    long_chat = engine.chat(template=TEMPLATES["Qwen-Qwen3-0.6B"])
    long_chat.replace(plain_turns(200))
    before = long_chat.messages

    async def cancelled():
        loop = asyncio.get_running_loop()
        stream = long_chat.send("Hi", max_tokens=2)

        real, written = jinja2.Template.generate, []

        def generate(template, **variables):
            for piece in real(template, **variables):
                written.append(piece)
                if len(written) == 100:
                    asyncio.run_coroutine_threadsafe(stream.__aexit__(None, None, None), loop)
                    while not inside.record_of(stream).cancellation.is_requested:
                        threading.Event().wait(0.001)
                yield piece

        monkeypatch.setattr(jinja2.Template, "generate", generate)
        return [piece async for piece in stream], len(written)

    assert asyncio.run(cancelled()) == ([], 100)
    assert long_chat.messages == before
    monkeypatch.undo()
    assert long_chat.send("Hi", max_tokens=2).reply().token_ids
