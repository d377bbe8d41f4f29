"""`localspec chat` on a terminal: the real command behind a pty, seen as a person sees it."""

from __future__ import annotations

import base64
import json
import re
import signal
import sys
import time

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from terminal import Terminal

pytestmark = pytest.mark.process

TERSE = ("--temperature", "0", "--max-tokens", "24")
DRAFT = ("--draft-tokens", "3")  # also where it would not pay
STORY = "Tell me a story about a fox."


@pytest.fixture
def chat(tmp_path):
    """Starts a chat with options, ready for the first message. All are ended at the end."""
    opened = []

    def start(*arguments, begins_with="", **more):
        terminal = Terminal(tmp_path, "chat", *arguments, *DRAFT, **more)
        opened.append(terminal)
        terminal.wait_for(lambda text: text.endswith(f"\n> {begins_with}".rstrip()))
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


def last_part(text: str) -> str:
    """The last message that was typed, and what stands behind it."""
    return text.rpartition("\n> ")[2]


def has_begun(message: str):
    """Whether some words of the answer to the message are on the screen."""
    return lambda text: (
        len(text.rpartition(f"\n> {message}\n")[2].split()) > 10
        and (f"\n> {message}\n" in text)
    )


def test_a_conversation_from_hello_to_goodbye(chat):
    terminal = chat()
    text = terminal.say(STORY)
    status = r"^\d+ tokens \(\d+ drafted\) · \d+ tokens/s · .*context \d+% full$"
    assert re.search(status, text, re.MULTILINE)
    assert "fox" in text.split(STORY, 1)[1]
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


def test_every_command_does_what_help_says(chat, tmp_path):
    """Each once, and its effect on what comes later."""
    terminal = chat(*TERSE)
    commands = re.findall(r"^(/[a-z]+)", terminal.say("/help"), re.MULTILINE)
    assert set(commands) == {
        "/help", "/stats", "/set", "/system", "/edit", "/continue", "/retry", "/undo", "/save",
        "/load", "/sessions", "/draft", "/clear", "/copy", "/show", "/file", "/image", "/quit",
    }  # fmt: skip
    assert "no answer yet" in terminal.say("/stats")
    first = last_part(terminal.say("Hello!"))
    assert "accepted by position" in terminal.say("/stats")
    assert "temperature 1.5" in terminal.say("/set temperature 1.5")
    assert "Error: temperature is" in terminal.say("/set temperature -1")
    assert "xtc_threshold cannot be set" in terminal.say("/set xtc_threshold 1")
    terminal.say("/set max_tokens 5")
    assert "\n5 tokens" in last_part(terminal.say("/retry"))
    terminal.say("/set temperature 0")
    terminal.say("/set max_tokens 24")
    answer = last_part(terminal.say("/retry")).split("\n")[1]
    assert answer == first.split("\n")[1]
    assert "Took back: Hello!" in terminal.say("/undo")
    assert "Error: there is no turn to take back" in terminal.say("/undo")
    assert "System message: Be brief." in terminal.say("/system Be brief.")
    assert "Draft off." in terminal.say("/draft off")
    assert "draft off" in last_part(terminal.say("Hello!"))
    assert "Draft on." in terminal.say("/draft on")
    assert "drafted)" in last_part(terminal.say(STORY))
    assert "Saved as one" in terminal.say("/save one")
    assert "starts over" in terminal.say("/clear")
    assert "Error: there is no answer to copy" in terminal.say("/copy")
    assert re.search(r"\none +0 turns .* open", last_part(terminal.say("/sessions")))
    assert re.search(r"\none +0 turns .* open", last_part(terminal.say("/load")))
    assert "Error: there is no session 'two'" in terminal.say("/load two")
    assert "Perhaps /save?" in terminal.say("/sav")
    (tmp_path / "notes.txt").write_text("remember the milk")
    assert "notes.txt (17 characters)" in terminal.say("/file notes.txt")
    assert "Error: absent does not exist" in terminal.say("/file absent")
    assert "notes.txt is not a picture" in terminal.say("/image notes.txt")
    assert "Error: ~nouser/x does not exist" in terminal.say("/file ~nouser/x")
    terminal.say("What is in it?")
    saved = json.loads((tmp_path / "localspec" / "sessions" / "one.json").read_text())
    question = saved["messages"][-2]["content"]
    assert "remember the milk" in question
    assert question.endswith("What is in it?")
    assert terminal.leave() == 0


def test_load_goes_on_where_save_stopped(chat, tmp_path):
    terminal = chat(*TERSE)
    terminal.say("Hello!")
    terminal.say("/save one")
    terminal.say("/clear")  # is saved, too
    assert "one: 0 turns" in terminal.say("/load one")
    terminal.say("Hello!")
    refused = Terminal(tmp_path, "chat", "--session", "one")
    assert refused.ended() == 1
    assert "open in another localspec" in refused.text()
    refused.close()
    assert terminal.leave() == 0
    again = chat("--session", "one")
    assert "Took back: Hello!" in again.say("/undo")


def sessions(tmp_path):
    """The first words of each session that is kept, by name."""
    return {
        path.stem: [m["content"][:6] for m in json.loads(path.read_text())["messages"][:1]]
        for path in (tmp_path / "localspec" / "sessions").glob("*.json")
    }


def ask_back(terminal, command, answer):
    """Type a command that asks whether it may, and the answer; what comes of it."""
    terminal.process.send(command + "\r")
    terminal.wait_for(lambda text: text.endswith("[y/N]:"))
    return terminal.say(answer)


def test_another_session_is_not_replaced_without_a_question(chat, tmp_path):
    """Nor is a conversation that was not saved; whatever is no yes is a no."""
    terminal = chat(*TERSE)
    terminal.say("First!")
    terminal.say("/save one")
    assert "Saved as one" in last_part(terminal.say("/save one"))  # is itself
    assert terminal.leave() == 0
    caches = tmp_path / "localspec" / "sessions" / "one.caches"
    caches.write_text("those of the first")
    other = chat(*TERSE)
    other.say("Second!")
    for answer in ("n", "", "\x04", "\x03"):
        number = other.num_prompts()
        other.process.send("/save one\r")
        other.wait_for(lambda text: text.endswith("[y/N]:"))
        assert "another session one" in last_part(other.text())
        other.process.send(answer if answer in ("\x03", "\x04") else answer + "\r")
        other.wait_for_prompt(number + 1)
        assert "Nothing was saved" in last_part(other.text())
    assert "Nothing was loaded" in ask_back(other, "/load one", "n")
    assert sessions(tmp_path) == {"one": ["First!"]}
    assert caches.exists()
    other.say("/save two")
    assert "Saved as one" in ask_back(other, "/save one", "y")
    assert sessions(tmp_path) == {"one": ["Second"], "two": ["Second"]}
    assert not caches.exists()
    other.say("/load two")  # what is saved can be left
    assert "Took back: Second!" in other.say("/undo")
    assert other.leave() == 0
    third = chat(*TERSE)
    third.say("Third!")
    assert "Continuing one: 1 turn." in ask_back(third, "/load one", "y")
    assert third.leave() == 0


def test_a_file_that_does_not_fit_is_no_trap(chat, tmp_path):
    """It is not attached; one that leaves no room for the message can be let go of."""
    (tmp_path / "huge.txt").write_text("word " * 4000)
    (tmp_path / "large.txt").write_text("word " * 1800)
    terminal = chat(*TERSE, "--session", "s")
    terminal.say("Hello!")
    refused = last_part(terminal.say("/file huge.txt")).replace("\n", " ")
    assert re.search(r"Error: huge.txt does not fit .* prompt of 40\d\d tokens", refused)
    assert "message: none" in terminal.say("/file")
    assert "large.txt (9000 characters)" in terminal.say("/file large.txt")
    message = "Why? " + "word " * 300
    terminal.process.send(message + "\r")
    refused = terminal.wait_for_prompt(6).replace("\n", " ")
    assert "Error: with large.txt, the message makes a prompt of" in refused
    assert "/file none removes the files" in refused
    assert "is unchanged" in refused
    assert "message: large.txt" in terminal.say("/file")
    assert "message: none" in terminal.say("/file none")
    assert "tokens/s" in last_part(terminal.say("And now?"))
    terminal.process.send("\x1b[A" * 4)  # after /file none, /file and the question
    terminal.wait_for(lambda text: text.rstrip().endswith("word word word"))
    number = terminal.num_prompts()
    terminal.process.send("\r")
    assert "tokens/s" in terminal.wait_for_prompt(number + 1).rpartition("word word")[2]
    saved = json.loads((tmp_path / "localspec" / "sessions" / "s.json").read_text())
    questions = [m["content"].strip() for m in saved["messages"] if m["role"] == "user"]
    assert questions == ["Hello!", "And now?", message.strip()]
    assert terminal.leave() == 0


def test_a_question_that_was_loaded_unanswered_stays_in_the_file(chat, tmp_path):
    terminal = chat(*TERSE)
    terminal.say("Hello!")
    terminal.say("/save one")
    assert terminal.leave() == 0
    path = tmp_path / "localspec" / "sessions" / "one.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pending": STORY}))
    again = chat(*TERSE)
    again.process.send("/load one\r")
    again.wait_for(lambda text: text.endswith(f"> {STORY}"))
    again.process.kill(signal.SIGKILL)
    again.ended()
    assert json.loads(path.read_text())["pending"] == STORY


def test_what_the_next_prompt_begins_with_is_read_while_a_person_thinks(tmp_path):
    system = " ".join([STORY] * 20)
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    terminal = Terminal(tmp_path, "chat", "--system", system, *TERSE, **home)
    # What it measures after the text that it has read is kept.
    terminal.wait_for(lambda _text: any(tmp_path.rglob("profiles/*.json")))
    terminal.say("Hello!")
    counts = re.search(r"prompt: (\d+) tokens, (\d+) of\s+them", terminal.say("/stats"))
    assert int(counts[2]) > 100
    assert int(counts[1]) - int(counts[2]) < 15
    assert terminal.leave() == 0
    terminal.close()


def test_copy_gives_the_answer_to_the_clipboard(chat):
    terminal = chat(*TERSE)
    answer = last_part(terminal.say("Hello!")).split("\n")[1]
    terminal.say("/copy")
    found = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07", terminal.received)
    assert found is not None
    assert base64.b64decode(found[1]).decode().split("\n")[0].startswith(answer[:20])


def test_show_marks_tokens_and_explains_the_marks(chat):
    colourful = chat(*TERSE)
    assert "␛" not in colourful.say("/show")
    assert "\x1b[32maccepted" in colourful.received.decode()
    terminal = chat(*TERSE, NO_COLOR="1")
    assert "drafted and accepted" in terminal.say("/show")
    assert last_part(terminal.say(STORY)).split("\n")[1].startswith("[")
    assert "as Markdown again" in terminal.say("/show")
    assert "[" not in last_part(terminal.say(STORY))


def test_a_message_of_several_lines(chat, tmp_path):
    """By Alt-Enter and by a backslash; completion by Tab; a space makes a command a message."""
    terminal = chat(*TERSE, "--session", "lines")
    terminal.process.send("one\x1b\rtwo\\\rthree\r")
    terminal.wait_for_prompt(2)
    terminal.say(" /help me")
    terminal.say("/etc/hosts is a file")
    assert "Session" not in terminal.text()
    terminal.process.send("/he\t\r")
    terminal.wait_for(lambda text: "Ctrl-D leaves.\n\n>" in text.split("a file", 1)[1])
    saved = json.loads((tmp_path / "localspec" / "sessions" / "lines.json").read_text())
    questions = [m["content"] for m in saved["messages"] if m["role"] == "user"]
    assert questions == ["one\ntwo\nthree", " /help me", "/etc/hosts is a file"]


def test_tab_completes_what_stands_behind_a_command(chat, tmp_path):
    (tmp_path / "notes of mine.txt").write_text("x")
    terminal = chat(*TERSE)
    terminal.say("/save birthday")
    for typed, completed in (
        ("/set temp", "/set temperature"),
        ("/load bi", "/load birthday"),
        ("/file no", "/file notes of mine.txt"),
        ("/draft of", "/draft off"),
    ):
        terminal.process.send(typed + "\t")
        terminal.wait_for(lambda text, end=completed: text.endswith(f"> {end}"))
        number = terminal.num_prompts()
        terminal.process.send("\r")
        terminal.wait_for_prompt(number + 1)
        assert "Error" not in terminal.text()
    terminal.process.send("plain te\t")  # a message is not completed
    terminal.wait_for(lambda text: text.endswith("> plain te"))


def test_what_is_typed_while_an_answer_comes_is_the_next_message(chat):
    terminal = chat("--temperature", "0")
    terminal.process.send(STORY + "\r")
    terminal.wait_for(has_begun(STORY))
    terminal.process.send("/stats\r")
    terminal.wait_for_prompt(3)
    assert "accepted by position" in terminal.text()


def test_history_survives_the_session(chat):
    terminal = chat(*TERSE)
    terminal.say("Hello there!")
    assert terminal.leave() == 0
    again = chat(*TERSE)
    again.process.send("\x1b[A")
    again.wait_for(lambda text: text.endswith("> Hello there!"))


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(chat):
    terminal = chat("--ignore-eos")
    terminal.process.send(STORY + "\r")
    terminal.wait_for(has_begun(STORY))
    terminal.process.send("\x03")
    text = terminal.wait_for_prompt(2)
    assert "(stopped)" in text
    assert "Took back: Tell me" in terminal.say("/undo")
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


def test_ctrl_c_empties_the_line_and_ctrl_d_needs_it_empty(chat):
    terminal = chat(*TERSE)
    terminal.process.send("never sent\x04\x03")
    terminal.wait_for_prompt(2)
    assert "tokens/s" not in terminal.text()
    assert terminal.leave() == 0


def test_ctrl_c_while_a_long_prompt_is_read(chat, tmp_path):
    """The terminal says what it waits for; afterwards nothing of the turn remains."""
    from gguf_maker import write_random_model
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset

    slow = write_random_model(
        tmp_path / "slow.gguf",
        locate(find_preset("demo"))["target"],
        width=1024,
        context_length=16384,
    )
    (tmp_path / "long.txt").write_text("word " * 12_000)
    terminal = chat("--target", str(slow), "--ctx", "16384", "--max-tokens", "4")
    terminal.say("/file long.txt")
    terminal.process.send("Well?\r")
    terminal.wait_for(lambda text: re.search(r"Reading \d+ of 1\d{4} tokens", text) is not None)
    terminal.process.send("\x03")
    text = terminal.wait_for_prompt(3)
    assert "(stopped)" in text
    assert "Reading" not in text
    assert "long.txt: kept for the next message" in text
    assert "no turn to take back" in terminal.say("/undo")
    assert "message: long.txt" in terminal.say("/file")
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


def test_ctrl_c_while_a_prompt_is_made(chat, tmp_path):
    """By a template that takes its time, for hundreds of turns that do not fit."""
    from localspec.chat.template import BUILT_IN

    work = "{% for i in range(600) %}{% for j in range(500) %}{% endfor %}{% endfor %}"
    (tmp_path / "slow.jinja").write_text(BUILT_IN["chatml"] + work)
    terminal = chat("--session", "s")
    terminal.say("Hello!")
    assert terminal.leave() == 0
    path = tmp_path / "localspec" / "sessions" / "s.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"messages": saved["messages"] * 300}))
    slow = chat("--session", "s", "--ignore-eos", "--chat-template", "slow.jinja")
    slow.process.send(STORY + "\r")
    slow.wait_for(lambda _text: b"\x1b[?2004l" in slow.received)  # the line has been left
    time.sleep(0.3)  # whether the answer has begun or not: it never ends by itself
    slow.process.send("\x03")
    assert "(stopped)" in slow.wait_for_prompt(2)
    slow.process.send("Hello!\r")
    slow.wait_for(has_begun("Hello!"))
    slow.process.send("\x03")
    slow.wait_for_prompt(3)
    assert slow.leave() == 0


@pytest.fixture(scope="module")
def large_model(tmp_path_factory, demo_target):
    """A file that takes a while to load."""
    from hollow_model import SHAPES, write_hollow_model

    path = tmp_path_factory.mktemp("large") / "large.gguf"
    return write_hollow_model(path, demo_target, SHAPES["Llama 3.1 8B"])


@pytest.fixture
def loading(tmp_path, large_model):
    """A chat that is loading its model, and says how far it is."""
    terminal = Terminal(tmp_path, "chat", "--target", str(large_model), "--ctx", "256")
    how_far = re.compile(r"^Loading the models: [1-9]\d?% …")
    text = terminal.wait_for(lambda text: how_far.match(text) or text.endswith("\n>"))
    if how_far.match(text) is None:
        pytest.skip("this machine loads it too quickly to be asked to wait")
    yield terminal
    terminal.close()


def test_a_load_says_how_far_it_is_and_then_nothing(loading):
    text = loading.wait_for_prompt(1)
    assert text.startswith("large.gguf alone.\n")
    assert "Loading" not in text
    shares = re.findall(r"Loading the models: (\d+)%", loading.received.decode())
    assert list(map(int, shares)) == sorted(map(int, shares))
    assert len(set(shares)) > 1
    assert loading.leave() == 0


def test_what_is_typed_during_a_load_is_the_first_message(loading):
    loading.process.send("/set seed 7")
    text = loading.wait_for(lambda text: text.endswith("\n> /set seed 7"))
    assert text.startswith("large.gguf alone.\n")
    assert b"set" not in loading.received.partition(b"large.gguf alone.")[0]
    loading.process.send("\r")
    assert "seed 7" in last_part(loading.wait_for_prompt(2))


def test_ctrl_c_ends_a_load(loading):
    loading.process.send("\x03")
    assert loading.ended() == 130
    assert loading.text() == ""
    assert loading.has_its_modes()
    assert not loading.screen.cursor.hidden
    assert b"Traceback" not in loading.received


def test_forty_columns_and_a_resize_in_the_middle(chat):
    """No word is cut; what follows a resize fits the new window."""
    terminal = chat("--temperature", "0", columns=40)
    text = terminal.say(STORY)
    story = last_part(text).split("\n")[1:]
    assert [line for line in story if len(line) >= 40] == []
    whole = " ".join(story)
    terminal.process.send("/retry\r")
    terminal.wait_for(has_begun("/retry"))
    terminal.resize(60, 24)
    terminal.wait_for_prompt(3)
    again = " ".join(last_part(terminal.text()).split("\n")[1:])
    words = whole.split("tokens/s")[0].split()[:-2]
    assert again.split()[: len(words)] == words
    number = terminal.num_prompts()
    terminal.resize(30, 10)
    terminal.wait_for_prompt(number + 1)  # is drawn again
    assert "System message: none" in terminal.say("/system")
    assert terminal.leave() == 0


def test_without_colour_nothing_is_coloured(chat):
    terminal = chat(*TERSE, NO_COLOR="1")
    terminal.say(STORY)
    assert not re.search(rb"\x1b\[(3[1-7]|9[0-7])m", terminal.received)


def test_a_dumb_terminal_gets_plain_text(chat):
    terminal = chat(*TERSE, TERM="dumb")
    terminal.process.send("Hello!\r")
    terminal.wait_for(lambda text: "tokens/s" in text)
    assert terminal.leave() == 0
    assert b"\x1b" not in terminal.received
    assert terminal.has_its_modes()


def left_unanswered(chat, question):
    """A session in whose midst the process was killed."""
    terminal = chat("--session", "s", "--ignore-eos")
    terminal.process.send(question + "\r")
    terminal.wait_for(has_begun(question))
    terminal.process.kill(signal.SIGKILL)
    terminal.ended()


def test_a_dumb_terminal_asks_again_what_was_not_answered(chat):
    """Enter alone does, also after a command that saves the session."""
    left_unanswered(chat, STORY)
    terminal = chat("--session", "s", *TERSE, TERM="dumb")
    assert terminal.text().endswith(f"Enter asks it again.\n{STORY}\n>")
    terminal.process.send("/save s\r")
    terminal.wait_for(lambda text: text.count(f"Enter asks it again.\n{STORY}\n>") == 2)
    assert terminal.leave() == 0
    again = chat("--session", "s", *TERSE, TERM="dumb")
    again.process.send("\r")
    again.wait_for(lambda text: "tokens/s" in text)
    again.process.send("/undo\r")
    again.wait_for(lambda text: "Took back: Tell me" in text)
    assert again.text().count("was not answered") == 1


def test_a_question_that_was_not_answered_outlives_a_command(chat, tmp_path):
    """The line is emptied, and the session saved: it is offered again. An answer ends that."""
    left_unanswered(chat, STORY)
    terminal = chat("--session", "s", *TERSE, begins_with=STORY)
    terminal.process.send("\x03")
    terminal.wait_for_prompt(2)
    terminal.process.send("/save s\r")
    terminal.wait_for(lambda text: text.count("was not answered") == 2)
    terminal.process.send("\x03")
    terminal.wait_for(lambda text: text.endswith("\n>"))
    assert "was not answered" not in last_part(terminal.say("Hello!"))
    assert terminal.leave() == 0
    assert chat("--session", "s", *TERSE).text().count("was not answered") == 0


def test_what_a_model_says_cannot_drive_the_terminal(chat, tmp_path):
    """Nor what its file says of itself: titles, the clipboard, links with another target."""
    from gguf_maker import write_random_model
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset

    escape = "ě]0;ownedć ě]52;c;eHg=ć ě]8;;http://evilć[link=http://evil]x[/link]"
    evil = write_random_model(
        tmp_path / "evil.gguf",
        locate(find_preset("demo"))["target"],
        replace_tokens={i: f"{escape}{i}" for i in range(300, 4096)},
    )
    terminal = chat("--target", str(evil), "--max-tokens", "9")
    assert "␛]0;owned␇" in terminal.say("hi")
    assert "[link=http://evil]" in terminal.text()
    assert b"\x1b]" not in terminal.received
    assert "␛]0;owned␇" in terminal.say("/show") + terminal.say("hi")
    assert b"\x1b]" not in terminal.received


def test_thoughts_are_dimmed_hidden_or_shown(chat, tmp_path):
    """A model that has thought after its first token, as its template has begun to."""
    from gguf_maker import write_random_model
    from localspec.chat.template import BUILT_IN
    from localspec.presets.located import locate
    from localspec.presets.presets import find_preset

    thinker = write_random_model(
        tmp_path / "thinker.gguf",
        locate(find_preset("demo"))["target"],
        replace_tokens={i: f"hmm</think>said{i}" for i in range(4096 - 300, 4096)},
    )
    template = tmp_path / "template.jinja"
    template.write_text(BUILT_IN["chatml"].replace("assistant\n' }}", "assistant\n<think>' }}"))
    bans = [f"--logit-bias={i}=-inf" for i in range(4096 - 300)]
    terminal = chat(
        "--target", str(thinker), "--chat-template", str(template), "--max-tokens", "1", *bans
    )  # fmt: skip
    assert re.search(r"\nhmm\n\nsaid\d+\n", last_part(terminal.say("Hi")))
    assert b"\x1b[2mhmm" in terminal.received
    assert "Error: think is 'never'" in terminal.say("/set think never")
    terminal.say("/set think hide")
    assert re.search(r"\n\(thinking\)\n\nsaid\d+\n", last_part(terminal.say("Hi")))
    terminal.say("/set think show")
    num_dim = terminal.received.count(b"\x1b[2mhmm")
    assert re.search(r"\nhmm\n\nsaid\d+\n", last_part(terminal.say("Hi")))
    assert terminal.received.count(b"\x1b[2mhmm") == num_dim


@pytest.mark.parametrize(("think", "shown"), [("show", "hmm."), ("hide", "(thinking)")])
def test_thoughts_end_without_their_blank_lines_and_are_told_at_once(capsys, think, shown):
    from localspec.cli.terminal.answer_view import RenderedView
    from localspec.speculative.metrics import Provenance
    from localspec.streaming.reply import Piece

    view = RenderedView(think)
    for text in ("\nhm", "m.\n", "\n"):
        view.push(Piece(text, (), Provenance.PLAIN, is_thought=True))
    begun = capsys.readouterr().out
    assert shown.startswith(begun)
    assert begun or think == "show"  # a word waits until it is whole
    for text in ("\n\nSaid", "."):
        view.push(Piece(text, (), Provenance.PLAIN))
    view.finish()
    assert begun + capsys.readouterr().out == f"{shown}\n\nSaid.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["at the prompt", "in an answer"])
def test_a_signal_leaves_the_terminal_as_it_was(chat, number, moment):
    terminal = chat("--ignore-eos", "--session", "s")
    if moment == "in an answer":
        terminal.process.send(STORY + "\r")
        terminal.wait_for(has_begun(STORY))
    terminal.process.kill(number)
    assert terminal.ended() == 128 + number
    assert terminal.has_its_modes()
    assert not terminal.screen.cursor.hidden
    assert b"Traceback" not in terminal.received


def test_a_killed_process_loses_at_most_the_answer_that_was_streaming(chat):
    terminal = chat("--session", "s", *TERSE[:2])
    terminal.say("Hello!")
    terminal.say("/set ignore_eos on")
    terminal.process.send(STORY + "\r")
    terminal.wait_for(has_begun(STORY))
    terminal.process.kill(signal.SIGKILL)
    terminal.ended()
    again = chat("--session", "s", *TERSE, begins_with=STORY)
    assert "was not answered" in again.text()
    again.process.send("\r")
    again.wait_for_prompt(2)
    assert "Took back: Tell me" in again.say("/undo")
    assert "Took back: Hello!" in again.say("/undo")


@pytest.mark.parametrize("command", ["bench", "verify"])
def test_what_a_measurement_prints_is_wrapped_between_words(tmp_path, command):
    terminal = Terminal(tmp_path, command, "--seconds", "1", columns=30)
    terminal.ended()
    lines = terminal.text().splitlines()
    said = " ".join(terminal.text().split())
    assert "ot enough" in said
    assert said.endswith("--details.")
    assert all(len(line) < 30 for line in lines)
    terminal.close()


def test_the_lines_behind_a_title_stand_below_each_other(tmp_path):
    terminal = Terminal(tmp_path, "explain", columns=50)
    assert terminal.ended() == 0
    assert terminal.text().splitlines()[0].startswith("Pair       A tiny pair trained")
    assert all(
        re.match(r"[A-Z][\w-]+ +\S| {11}\S", line) for line in terminal.text().splitlines()
    )
    terminal.close()


def test_a_pipe_needs_neither_editor_nor_drawing():
    import subprocess

    code = (
        "import sys; from click.testing import CliRunner; from localspec.cli import main;"
        "print(CliRunner().invoke(main, ['chat', '--max-tokens', '3'], input='hi').output);"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"prompt_toolkit", "rich", "pygments"} & set(done.stdout.split())
