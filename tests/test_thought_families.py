"""Models of several families think, speak, and are asked again: what comes out and goes in.

Each model says the same tokens after the same, which libllama decodes; the templates render
turns as the families' own do.
"""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
from click.testing import CliRunner

import localspec
from gguf_maker import write_scripted_model
from localspec.cli import main
from localspec.cli.terminal.answer_view import MarkedView, RenderedView
from localspec.speculative.metrics import Provenance
from localspec.streaming.answer_text import AnswerText
from localspec.streaming.reply import Piece
from localspec.streaming.thinking import Thoughts
from localspec.streaming.thought_families import FAMILIES

GREEDY = localspec.SamplingParams(temperature=0)


@dataclasses.dataclass(frozen=True)
class Model:
    """script: as for `write_scripted_model`. rendered: the second prompt, but its begin."""

    template: str
    rendered: str
    script: dict[str, str]
    control: tuple[str, ...] = ()
    user_defined: tuple[str, ...] = ()


def template(user: str, assistant: str, begin: str) -> str:
    """Texts in which X is the message's content."""
    user, assistant = (text.replace("X", "{{ m.content }}") for text in (user, assistant))
    return (
        f"{{% for m in messages %}}{{% if m.role == 'user' %}}{user}{{% else %}}{assistant}"
        f"{{% endif %}}{{% endfor %}}{begin}"
    )


MODELS = {
    "gpt-oss": Model(
        template(
            "<|start|>user<|message|>X<|end|>",
            "<|start|>assistant<|channel|>final<|message|>X<|end|>",
            "<|start|>assistant",
        ),
        "<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>and<|end|><|start|>assistant",
        {
            "t": "<|channel|>",
            "<|channel|>": "analysis",
            "analysis": "<|message|>",
            "<|message|>": "Hm.",
            "Hm.": "<|end|>",
            "<|end|>": "<|start|>",
            "<|start|>": "assistant",
            "assistant": "<|channel|>final<|message|>",  # in letters: a token has one successor
            "<|channel|>final<|message|>": "Hello.",
            "Hello.": "<|return|>",
        },
        # libllama makes all but the last user-defined.
        control=(
            "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>", "<|call|>",
            "<|return|>",
        ),
    ),
    "Solar": Model(
        template(
            "<|begin|>user<|content|>X<|end|>",
            "<|begin|>assistant<|content|>X<|end|>",
            "<|begin|>assistant",
        ),
        "<|begin|>user<|content|>hi<|end|><|begin|>assistant<|content|>Hello.<|end|>"
        "<|begin|>user<|content|>and<|end|><|begin|>assistant",
        {
            "t": "<|think|>",
            "<|think|>": "Hm.",
            "Hm.": "<|end|>",
            "<|end|>": "<|begin|>",
            "<|begin|>": "assistant",
            "assistant": "<|content|>",
            "<|content|>": "Hello.",
            "Hello.": "<|flush|>",
        },
        control=("<|begin|>", "<|think|>", "<|content|>", "<|end|>", "<|calls|>", "<|flush|>"),
    ),
    "Gemma 4": Model(
        template("<|turn>user\nX<turn|>\n", "<|turn>model\nX<turn|>\n", "<|turn>model\n")
        + "{# <|channel>thought<channel|> #}",
        "<|turn>user\nhi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\nand<turn|>\n"
        "<|turn>model\n",
        {
            "<0x0A>": "<|channel>",
            "<|channel>": "thought",
            "thought": "Hm.",
            "Hm.": "<channel|>",
            "<channel|>": "Hello.",
            "Hello.": "<turn|>",
        },
        control=("<|turn>", "<turn|>"),
        user_defined=("<|channel>", "<channel|>"),
    ),
    "Command-R": Model(
        template(
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>X<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>X<|END_RESPONSE|>"
            "<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        )
        + "{# <|START_THINKING|><|END_THINKING|> #}",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>Hello.<|END_RESPONSE|>"
        "<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>and<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        {
            "<|CHATBOT_TOKEN|>": "<|START_THINKING|>",
            "<|START_THINKING|>": "Hm.",
            "Hm.": "<|END_THINKING|>",
            "<|END_THINKING|>": "<|START_RESPONSE|>",
            "<|START_RESPONSE|>": "Hello.",
            "Hello.": "<|END_RESPONSE|>",
        },
        control=(
            "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>", "<|START_THINKING|>", "<|END_THINKING|>",
            "<|START_RESPONSE|>", "<|END_RESPONSE|>",
        ),
    ),
    "Mistral": Model(
        # Its own template refuses an empty answer, too.
        template(
            "[INST]X[/INST]",
            "{% if m.content == '' %}{{ raise_exception('empty') }}{% endif %}X</s>",
            "",
        ),
        "[INST]hi[/INST]Hello.</s>[INST]and[/INST]",
        {
            "[/INST]": "[THINK]",
            "[THINK]": "Hm.",
            "Hm.": "[/THINK]",
            "[/THINK]": "Hello.",
        },
        control=("[INST]", "[/INST]", "[THINK]", "[/THINK]"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The models' files, by name."""
    folder = tmp_path_factory.mktemp("families")
    return {
        name: write_scripted_model(
            folder / f"{name}.gguf",
            model.script,
            control=model.control,
            user_defined=model.user_defined,
        )
        for name, model in MODELS.items()
    }


def spelled(engine, tokens) -> str:
    spellings = engine.vocabulary.spellings()
    return b"".join(spellings[token] for token in tokens).decode()


def check_turn(chat) -> None:
    with chat.send("hi", sampling=GREEDY, max_tokens=50) as stream:
        pieces = list(stream)
    thoughts = "".join(piece.text for piece in pieces if piece.is_thought)
    said = "".join(piece.text for piece in pieces if not piece.is_thought)
    assert (thoughts, said) == ("Hm.", "Hello.")
    assert (stream.reply().thoughts, stream.reply().text) == ("Hm.", "Hello.")
    assert stream.reply().finish_reason == "stop"
    tokens = tuple(token for piece in pieces for token in piece.token_ids)
    assert tokens == stream.reply().token_ids
    assert chat.messages[-1] == {"role": "assistant", "content": "Hello."}


@pytest.mark.parametrize("name", MODELS)
def test_thoughts_are_told_from_the_answer_and_left_out_of_the_next_prompt(files, name):
    with localspec.load(target=files[name]) as engine:
        chat = engine.chat(template=MODELS[name].template)
        check_turn(chat)
        prompt = spelled(engine, chat.prompt_tokens("and"))
        assert prompt == "<s>" + MODELS[name].rendered


def test_the_vocabulary_tells_where_a_template_names_no_marks(files):
    plain = "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}"
    with localspec.load(target=files["Mistral"]) as engine:
        check_turn(engine.chat(template=plain))


@pytest.mark.process
def test_in_another_process(files):
    with localspec.IsolatedEngine(target=files["Mistral"]) as engine:
        check_turn(engine.chat(template=MODELS["Mistral"].template))


def test_a_raw_prompt_has_no_thoughts(files):
    """Whoever writes the prompt reads the answer: marks that libllama shows stand in it."""
    with localspec.load(target=files["gpt-oss"]) as engine:
        reply = engine.generate_raw(
            "<|start|>assistant", sampling=GREEDY, max_tokens=50
        ).reply()
        assert reply.text.startswith("<|channel|>analysis<|message|>Hm.")
        assert reply.thoughts == ""


def test_a_stop_string_is_not_found_in_a_mark_or_across(files):
    """And what it held back belongs to what stood before the mark."""
    with localspec.load(target=files["Mistral"]) as engine:
        chat = engine.chat(template=MODELS["Mistral"].template)
        reply = chat.send(
            "hi", sampling=GREEDY, max_tokens=50, stop=["[", ".Hello", ".["]
        ).reply()
        assert (reply.thoughts, reply.text) == ("Hm.", "Hello.")
        reply = chat.send("hi", sampling=GREEDY, max_tokens=50, stop="llo").reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "He", "stop")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-oss", ["analysis", "final", "assistant", "s", "channel"]),
        ("Solar", ["assistant", "content"]),
        ("Gemma 4", ["thought", "channel"]),
    ],
)
def test_a_stop_string_is_not_found_in_the_head_of_a_message(files, name, words):
    """It is in no text. In thoughts it does not count, in speech it does."""
    with localspec.load(target=files[name]) as engine:
        chat = engine.chat(template=MODELS[name].template)
        for stop in [*words, words]:
            reply = chat.send("hi", sampling=GREEDY, max_tokens=50, stop=stop).reply()
            assert (reply.thoughts, reply.text) == ("Hm.", "Hello.")
            assert chat.undo() == "hi"
        reply = chat.send("hi", sampling=GREEDY, max_tokens=50, stop=[*words, "lo"]).reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "Hel", "stop")
        assert chat.undo() == "hi"
        reply = chat.send("hi", sampling=GREEDY, max_tokens=50, stop=["m", "lo"]).reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "Hel", "stop")


def test_a_stop_string_is_not_found_across_messages():
    """Two thoughts in a row, say, with a head between them: what waited stays before it."""
    text = "<|channel|>analysis<|message|>one ST<|end|><|start|>assistant<|channel|>analysis"
    answer = text + "<|message|>OP two<|end|>"
    stop_strings = ("STOP", "ne STO")
    stream = AnswerText(Letters(answer), Thoughts(FAMILIES[:1]), stop_strings, None)
    parts = [part for token in range(len(answer)) for part in stream.push(token)]
    assert not stream.stopped
    parts += stream.finish(is_cut=False)
    assert "".join(part.text for part in parts if part.is_thought) == "one STOP two"


class Letters:
    """Tokens that are one character each."""

    def __init__(self, text: str) -> None:
        self.text = text.__getitem__

    def piece(self, token: int) -> bytes:
        return self.text(token).encode()


def test_a_conversation_from_elsewhere_may_have_thoughts(files):
    with localspec.load(target=files["Gemma 4"]) as engine:
        chat = engine.chat(template=MODELS["Gemma 4"].template)
        answer = "<|channel>thought\nSo.<channel|>Hello."
        chat.replace(
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]
        )
        prompt = spelled(engine, chat.prompt_tokens("and"))
        assert prompt == "<s>" + MODELS["Gemma 4"].rendered


def test_an_answer_of_thoughts_alone_does_not_trap_the_chat(files):
    """The template refuses a turn in which nothing was said."""
    with localspec.load(target=files["Mistral"]) as engine:
        chat = engine.chat(template=MODELS["Mistral"].template)
        reply = chat.send("hi", sampling=GREEDY, max_tokens=2).reply()
        assert (reply.thoughts, reply.text, reply.finish_reason) == ("Hm.", "", "length")
        assert chat.messages[0]["content"] == "hi"
        assert chat.send("and", sampling=GREEDY, max_tokens=50).reply().text == "Hello."


def test_the_command_writes_thoughts_elsewhere(files, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(MODELS["Mistral"].template)
    command = [
        "generate", "hi", "--target", str(files["Mistral"]), "--chat-template", str(file),
        "--temperature", "0", "--max-tokens", "50",
    ]  # fmt: skip
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "Hello.\n", "Hm.\n")
    done = CliRunner().invoke(main, [*command, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["thoughts"]) == ("Hello.", "Hm.")


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(
    ("max_tokens", "shown"),
    [(50, "Hm.\nHello."), (2, "Hm.\nCut off after 2 tokens. For more: --max-tokens")],
)
def test_on_a_terminal_the_last_word_of_the_thoughts_comes_before_the_answer(
    files, tmp_path, max_tokens, shown
):
    """Or before the end, where nothing was said; both streams are wrapped there as one."""
    from terminal import Terminal

    (tmp_path / "template.jinja").write_text(MODELS["Mistral"].template)
    terminal = Terminal(
        tmp_path, "generate", "hi", "--target", str(files["Mistral"]), "--chat-template",
        "template.jinja", "--temperature", "0", "--max-tokens", str(max_tokens),
    )  # fmt: skip
    assert terminal.ended() == 0
    assert terminal.text().startswith(shown)
    terminal.close()


def pieces(*texts: tuple[str, bool]) -> list[Piece]:
    return [Piece(text, (0,), Provenance.PLAIN, is_thought=thought) for text, thought in texts]


@pytest.mark.parametrize(
    ("think", "shown"),
    [
        ("show", "Hm.\n\nHello.\nHm?\n\nYes.\n"),
        ("hide", "(thinking)\n\nHello.\n(thinking)\n\nYes.\n"),
    ],
)
def test_a_model_that_thinks_again_is_shown_in_order(capsys, think, shown):
    view = RenderedView(think)
    for piece in pieces(
        ("\nHm", True), (".", True), ("", False), ("Hello.", False), ("\n", True),
        ("Hm?", True), ("Yes.", False),
    ):  # fmt: skip
        view.push(piece)
    view.finish()
    assert capsys.readouterr().out == shown


def test_marked_tokens_of_thoughts_stand_on_lines_of_their_own(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    view = MarkedView()
    for piece in pieces(("", True), ("Hm.", True), ("", False), ("He", False), ("y.", False)):
        view.push(piece)
    view.finish()
    assert capsys.readouterr().out.replace("[", "").replace("]", "") == "Hm.\nHey.\n"
