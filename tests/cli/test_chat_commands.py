"""Messages and commands of `localspec chat`, in this process and without a terminal."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace
from typing import Literal

import click
import pytest

import localspec
from call_families import SAID, write_calling_model
from command_line import run
from localspec.chat.session import session_file
from localspec.chat.template import BUILT_IN
from localspec.cli import main
from localspec.cli.conversation import Conversation
from localspec.cli.terminal import dialogue
from localspec.cli.terminal.markdown import RenderedView
from localspec.speculative.metrics import Provenance
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.reply import Piece, Reply
from spawned import session_open_elsewhere
from vision_maker import random_picture, write_vision_pair

STORY = "Tell me a story about a fox."
AGAIN = None  # Enter alone: what stands in the line is sent


class Person:
    """Types lines into one conversation."""

    def __init__(self, conversation: Conversation, patch, capsys) -> None:
        self.conversation = conversation
        self._patch, self._capsys = patch, capsys

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *_: object) -> None:
        """Give up the session for the next person."""
        self.conversation.save_at_end()
        if self.conversation.lock is not None:
            self.conversation.lock.release()

    def says(self, *lines: str | None) -> str:
        """What is shown for these lines, up to a word that leaves the chat."""

        class Editor:
            def __init__(self, _commands) -> None: ...

            def messages(self, prefill, meanwhile):
                was_emptied = False
                for line in lines:
                    stands = prefill(was_emptied)
                    with meanwhile():
                        text = stands if line is AGAIN else line
                    if not (was_emptied := not text):
                        yield text

        self._patch.setattr(dialogue, "LineEditor", Editor)
        with click.Context(main.commands["chat"]):
            dialogue.converse(self.conversation)
        shown = self._capsys.readouterr()
        return shown.out + shown.err


@pytest.fixture
def chat(engine, own_folders, monkeypatch, capsys):
    """Makes a person with a conversation, of the demo pair and greedy if not said otherwise."""
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr("localspec.cli.answer_output.is_terminal", lambda _stream: True)

    def make(of=engine, session=None, template=None, rule=None, **more) -> Person:
        conversation = Conversation(
            engine=of,
            chat=of.chat(template=template),
            options=AnswerOptions(
                of.sampling.changed({"temperature": 0.0}), None, rule, 24, draft_tokens=3
            ),
            write=dialogue.show_answer,
            show_draft=False,
            **more,
        )
        if session is not None:
            conversation.open_session(session)
        person = Person(conversation, monkeypatch, capsys)
        people.append(person)
        return person

    people: list[Person] = []
    yield make
    for person in people:
        person.__exit__()


def saved(name: str) -> list[tuple[str, str]]:
    """What the session holds: the role's first letter and the content of each message."""
    listed = run("sessions", "export", name, "--json")
    messages = json.loads(listed.stdout)["messages"]
    return [(message["role"][0], message["content"]) for message in messages]


def test_every_command_does_what_help_says(chat, tmp_path, monkeypatch):
    """Each once, and its effect on what comes later."""
    monkeypatch.chdir(tmp_path)
    person = chat()
    commands = re.findall(r"^(/[a-z]+)", person.says("/help"), re.MULTILINE)
    assert set(commands) == {
        "/help", "/stats", "/set", "/system", "/edit", "/continue", "/retry", "/undo", "/save",
        "/load", "/draft", "/clear", "/copy", "/show", "/file", "/quit",
    }  # fmt: skip
    assert "no answer yet" in person.says("/stats")
    first = person.says("Hello!")
    # Beside other tests, an answer may be slower than the one before.
    rest = r"(context \d+% full|\d+(\.\d)? times slower than measured before)"
    assert re.search(rf"^\d+ tokens .*tokens/s · {rest}", first, re.MULTILINE)
    assert "accepted by position" in person.says("/stats")
    assert "temperature 1.5" in person.says("/set temperature 1.5")
    assert "\n5 tokens" in person.says("/set max_tokens 5", "/retry")
    again = person.says("/set temperature 0", "/set max_tokens 24", "/retry")
    assert first.splitlines()[0] in again
    assert "Removed: Hello!" in person.says("/undo")
    assert "Error: there is no turn to remove" in person.says("/undo")
    assert "System message: Be brief." in person.says("/system Be brief.")
    shown = person.says("/draft off", "Hello!", "/stats")
    assert "draft off" in shown.rpartition("Draft off.")[2]
    assert "drafted)" in person.says("/draft on", STORY)
    assert "Saved as one" in person.says("/save one")
    assert "starts over" in person.says("/clear")
    assert "Error: there is no answer to copy" in person.says("/copy")
    for command in ("/sessions", "/load"):
        assert re.search(r" 0 turns .* one, open$", person.says(command), re.MULTILINE)
    assert "Perhaps one?" in person.says("/load onne")
    assert "Perhaps /save?" in person.says("/sav")
    (tmp_path / "notes.txt").write_text("remember the milk")
    assert "notes.txt (17 characters)" in person.says("/file notes.txt")
    assert "message: none" in person.says("/file none")
    assert "Error: absent does not exist" in person.says("/file absent")
    person.says("/file notes.txt", "What is in it?")
    _, question = saved("one")[-2]
    assert "remember the milk" in question
    assert question.endswith("What is in it?")
    assert "drafted and accepted" in person.says("/show")
    assert "(" in person.says(STORY)
    assert "as Markdown again" in person.says("/show")
    assert "\x1b]52;c;" in person.says("/copy")


@pytest.mark.parametrize("word", ["/quit", "/bye", "exit "])
def test_a_word_leaves_the_chat(chat, word):
    assert chat().says(word, "Hello!") == ""


def test_what_only_looks_like_a_command_is_a_message(chat):
    person = chat(session="s")
    messages = ["exit now", " quit", " /help me", "/etc/hosts is a file", "one\ntwo"]
    person.says(*messages)
    assert [text for who, text in saved("s") if who == "u"] == messages


def test_a_cut_answer_is_continued_as_one_answer(chat, engine):
    person = chat(session="s")
    assert "Cut off after 24 tokens. For more: --max-tokens; in a chat /continue" in (
        person.says(STORY)
    )
    for _ in range(20):
        said = person.says("/continue")
        if "the last answer is complete" in said:
            break
        assert said.startswith(saved("s")[1][1][:40])  # it is shown whole
    whole = engine.chat().send(STORY, temperature=0, draft_tokens=3).reply().text
    assert len(whole) > 100
    assert saved("s") == [("u", STORY), ("a", whole)]


def test_a_continued_answer_that_ends_in_a_call_is_shown_once(tmp_path):
    pytest.importorskip("pydantic", reason="pydantic is not installed")
    pytest.importorskip("llguidance", reason="llguidance is not installed")

    def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
        return "clear"

    def write(conversation: Conversation, answer: Answer) -> Reply:
        shown.append(conversation.text_so_far + answer.reply().text)
        return answer.reply()

    shown: list[str] = []
    options = AnswerOptions(max_tokens=1, tools=[get_weather])
    toolbox = SimpleNamespace(may_run=lambda step: True, run=lambda step: step.run())
    with localspec.load(
        target=write_calling_model(tmp_path / "m.gguf", "Qwen", SAID)
    ) as engine:
        conversation = Conversation(
            engine, engine.chat(), options, write, show_draft=False, toolbox=toolbox
        )
        conversation.ask("hi")
        conversation.options = AnswerOptions.of(options, max_tokens=None)
        conversation.continue_answer()
    assert shown == ["Let me see. ", "Let me see. ", "Done."]
    assert conversation.text_so_far == ""


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--top-p=0.5", "top_p 0.5"),
        ("repeat-penalty 1.5", "repetition_penalty 1.5"),  # the flag has another name
        ("--max-tokens none", "max_tokens no limit"),
        ("max_tokens no limit", "max_tokens no limit"),
        ("top-p 1.5", "Error: top_p is 1.5"),
        ("top 9", "Hint: Perhaps top_n_sigma or top_k or top_p? /set lists all"),
        ("--ctx 9", "Error: there is no setting '--ctx'"),
        ("system Be brief.", "Hint: It is a command: /system"),
        ("mirostat_tau 5", "Error: mirostat_tau cannot be set"),
        ("temperature 0.5", "Error: the rule greedy needs temperature 0"),
    ],
)
def test_settings_have_the_names_of_flags_and_wrong_ones_change_nothing(chat, typed, said):
    person = chat(rule="greedy")
    before = person.says("/set")
    assert said in person.says(f"/set {typed}")
    is_wrong = said.startswith(("Error", "Hint"))
    assert (person.says("/set") == before) == is_wrong


def test_a_setting_without_a_value_has_the_name_of_what_happens(chat):
    """And that name can be typed, too."""
    person = chat()
    assert {"seed random", "max_tokens 24"} <= set(person.says("/set").splitlines())
    person.says("/set seed 7")
    assert person.says("/set seed random").splitlines() == ["seed random"]


def test_one_token_is_one_token(chat):
    assert "Cut off after 1 token. For more" in chat().says("/set max_tokens 1", STORY)


def test_nothing_is_continued_before_the_first_answer(chat):
    assert "Error: there is no answer yet" in chat().says("/continue")


def test_a_warning_of_a_pair_is_a_note(monkeypatch, demo_target, demo_draft):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    pair = ["--target", str(demo_draft), "--draft", str(demo_target), "--max-tokens", "2"]
    said = run("generate", *pair, "Hi").stderr
    assert f"{demo_target.name} drafts for {demo_draft.name}" in said


def test_a_text_without_blanks_is_quoted_too(chat):
    long = "日本語の文章には空白がありません。" * 20
    with chat(session="s") as person:
        person.says(long)
    with chat() as person:
        assert f"\n> {long[:240]}…\n" in person.says("/load s")
        assert f"Removed: {long[:60]}…" in person.says("/undo")


def test_a_session_goes_on_and_says_where(chat):
    """Under a name of any letters, however they are written."""
    long = "word " * 100 + "end"
    with chat() as person:
        assert "Saved as Grüße 日本語, and saved again" in person.says(
            long, "/save Grüße 日本語"
        )
        assert "Saved as Grüße 日本語, and" in person.says("/save GRU\u0308SSE 日本語")
        assert "cannot be the name of a session" in person.says("/save ../x")
    with chat() as person:
        said = person.says("/load grüsse 日本語")
        begin = r"Continuing Grüße 日本語: 1 turn\. The last one:\n> word (word )+…\n"
        assert re.search(begin, said)
        assert len(said) < 900
        assert f"Removed: {long[:60]}" in person.says("/undo")


def test_another_session_is_not_replaced_without_a_question(chat, monkeypatch):
    """Nor is a conversation that was not saved; whatever is no yes is a no."""
    with chat(session="one") as first:
        first.says("First!")
    kept, asked = saved("one"), []
    answers = [click.Abort(), False, False, True, True]

    def confirm(question: str, **_more: object) -> bool:
        asked.append(question)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(click, "confirm", confirm)
    with chat() as other:
        assert other.says("Second!", "/save one", "/save one").count("Nothing was saved") == 2
        assert "Nothing was loaded" in other.says("/load one")
        assert saved("one") == kept
        assert "Saved as one" in other.says("/save two", "/save one")
        assert saved("one")[0] == saved("two")[0] == ("u", "Second!")
    with chat() as third:
        assert "Continuing one: 1 turn." in third.says("Third!", "/load one")
    assert (len(asked), answers) == (5, [])


@pytest.mark.process
def test_what_is_wrong_with_a_name_is_said_before_any_question(chat, monkeypatch, own_folders):
    """Of a session that is not there, open elsewhere, or unreadable; nothing changes."""

    def nobody_is_asked(question: str, **_more: object) -> bool:
        raise AssertionError(question)

    monkeypatch.setattr(click, "confirm", nobody_is_asked)
    with chat(session="one") as first:
        first.says("First!")
    with chat(session="torn") as torn:
        torn.says("Torn!")
    session_file("torn").write_text("{")
    person = chat()
    person.says("Second!")
    assert "there is no session 'nosuch'" in person.says("/load nosuch")
    assert "cannot be the name of a session" in person.says("/load ../x")
    assert "cannot be the name of a session" in person.says("/save ../x")
    assert "it is not JSON" in person.says("/load torn")
    with session_open_elsewhere("one", own_folders):
        assert "open in another localspec" in person.says("/load one")
        assert "open in another localspec" in person.says("/save one")
        removed = run("sessions", "remove", "one", stdin="y\n")
    assert "open in another localspec" in removed.stderr
    assert person.conversation.session is None
    assert "Removed: Second!" in person.says("/undo")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--session", "../x"), "cannot be the name of a session"),
        (("--chat-template", "absent.jinja"), "absent.jinja"),
        (("--temperature", "-1"), "temperature is -1.0"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_before_a_download(monkeypatch, options, said):
    def nobody_is_asked(model: str) -> None:
        raise AssertionError(model)

    monkeypatch.setattr("localspec.cli.shared_options.offer_download", nobody_is_asked)
    result = run("chat", "qwen2-7b", *options)
    assert said in result.stderr


def test_an_edited_question_replaces_the_last_one(chat, tmp_path, monkeypatch):
    """With the files beside it. Given up or too long it leaves the old one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("remember the milk")
    person = chat(session="s")
    assert "Error: there is no question yet" in person.says("/edit")
    person.says("Hello!", "/file notes.txt", "What is that?")
    for given_up in ("", "/system", "word " * 3000):
        person.says("/edit", given_up)
    files = "notes.txt:\n```\nremember the milk\n```\n\n"
    assert saved("s")[2] == ("u", f"{files}What is that?")
    assert "in place of the old one" in person.says("/edit", "What is that, then?")
    assert [text for who, text in saved("s") if who == "u"] == [
        "Hello!", f"{files}What is that, then?",
    ]  # fmt: skip
    assert "Removed: Hello!" in person.says("/undo", "/edit", AGAIN, "/undo")
    monkeypatch.setenv("TERM", "dumb")
    assert "Hint: Use /undo, then ask again." in person.says("/edit")


def test_a_file_that_does_not_fit_is_no_trap(chat, tmp_path, monkeypatch):
    """It is not attached; one that leaves no room for the message can be let go of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "huge.txt").write_text("word " * 4000)
    (tmp_path / "large.txt").write_text("word " * 1800)
    person = chat()
    assert re.search(
        r"huge.txt does not fit .* of 40\d\d tokens", person.says("/file huge.txt")
    )
    assert "message: none" in person.says("/file")
    said = person.says("/file large.txt", "Why? " + "word " * 300)
    assert "large.txt: kept for the next message; /file none removes them" in said
    assert "Error: the message makes a prompt of" in said
    assert "is unchanged" in said
    assert "message: large.txt" in person.says("/file")
    assert "message: none" in person.says("/file none")
    assert "tokens/s" in person.says("And now?")


def test_a_path_of_an_image_that_is_dropped_is_no_message(chat, tmp_path, monkeypatch):
    """As terminals type it: in quotes, with escapes, as a URL, several of them."""
    monkeypatch.chdir(tmp_path)
    picture = tmp_path / "my photo.png"
    picture.write_bytes(random_picture(1, 40, 30).png())
    (tmp_path / "notes.txt").write_text("remember the milk")
    person = chat()
    for typed in (
        f"'{picture}'",
        str(picture).replace(" ", "\\ "),
        f"file://{picture}".replace(" ", "%20"),
        f"notes.txt '{picture}'",
        f"/file {picture}",
        "my photo.png",
    ):
        said = person.says(typed)
        assert "Error: my photo.png is an image, and the model has no projector" in said
        assert "--mmproj" in said
        assert "tokens" not in said
    for typed in (
        f"What is '{picture}'?",
        "It's a photo.png",
        "notes.txt",
        "file://[host]/share",  # no URL, since the host is no address
        "file://[host/share",
    ):
        assert "tokens/s" in person.says(typed)


def test_a_model_that_sees_is_shown_images(chat, tmp_path, monkeypatch):
    """By a command, or dropped on the terminal; a line says what they take.

    What is exported names them by their files.
    """
    monkeypatch.chdir(tmp_path)
    template = {"tokenizer.chat_template": BUILT_IN["chatml"]}
    target, mmproj = write_vision_pair(tmp_path, "gemma3", extra=template)
    picture = tmp_path / "my photo.png"
    picture.write_bytes(random_picture(1, 40, 30).png())
    (tmp_path / "notes.txt").write_text("remember the milk")
    told = re.compile(r"my photo.png \(40 by 30 pixels, \d+ tokens\) is attached")
    with localspec.load(target=target, mmproj=mmproj, num_threads=1) as sighted:
        person = chat(of=sighted)
        for typed in (f"/image {picture}", f"/file {picture}", f"'{picture}'"):
            assert told.search(person.says(typed))
        assert "tokens/s" in person.says("what is it")
        said = person.says(f"notes.txt '{picture}'")
        assert told.search(said)
        assert "notes.txt (17 characters) is attached" in said
        assert "Saved as seen" in person.says("and now", "/save seen")
    exported = run("sessions", "export", "seen").stdout
    assert exported.count("[image my photo.png]") == 4


@pytest.mark.parametrize(
    ("think", "shown"), [("show", "hmm."), ("hide", "(thinking)"), ("dim", "hmm.")]
)
def test_thoughts_end_without_their_blank_lines_and_are_told_at_once(capsys, think, shown):
    view = RenderedView(think)
    for text in ("\nhm", "m.\n", "\n"):
        view.push(Piece(text, (), Provenance.PLAIN, is_thought=True))
    begun = capsys.readouterr().out
    assert shown.startswith(begun)
    assert begun or think != "hide"  # a word waits until it is whole
    for text in ("\n\nSaid", "."):
        view.push(Piece(text, (), Provenance.PLAIN))
    view.finish()
    assert begun + capsys.readouterr().out == f"{shown}\n\nSaid.\n"
