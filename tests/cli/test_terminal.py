"""`localspec chat` on a terminal: the real command behind a pty, seen as a person sees it."""

from __future__ import annotations

import json
import re
import signal
import sys

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


def has_begun(message: str):
    """Whether some words of the answer to the message are on the screen."""
    return lambda text: (
        len(text.rpartition(f"\n> {message}\n")[2].split()) > 10
        and (f"\n> {message}\n" in text)
    )


def test_a_conversation_from_hello_to_goodbye(chat):
    """With an answer that is stopped, and a line that was typed while it came."""
    terminal = chat("--ignore-eos", "--max-tokens", "100")
    terminal.process.send(STORY + "\r")
    terminal.wait_for(has_begun(STORY))
    terminal.process.send("/stats\r")
    text = terminal.wait_for_prompt(3)
    # Beside other tests, an answer may be slower than the one before.
    rest = r"(context \d+% full|\d+(\.\d)? times slower than measured before)"
    status = rf"^\d+ tokens \(\d+ drafted\) · \d+ tokens/s · {rest}"
    assert re.search(status, text, re.MULTILINE)
    assert "accepted by position" in text
    terminal.say("/set max_tokens no limit")
    other = STORY.replace("fox", "hen")
    terminal.process.send(other + "\r")
    terminal.wait_for(has_begun(other))
    terminal.process.send("\x03")
    assert "(stopped)" in terminal.wait_for_prompt(5)
    assert "Error: there is no session 'nosuch'" in terminal.say("/load nosuch")
    assert "Removed: Tell me" in terminal.say("/undo")
    terminal.process.send("never sent\x04\x03")  # Ctrl-D needs an empty line
    terminal.wait_for_prompt(8)
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


def test_lines_of_a_message_completion_and_history(chat, tmp_path):
    (tmp_path / "notes of mine.txt").write_text("x")
    terminal = chat(*TERSE, "--session", "lines")
    assert "lines is a new session." in terminal.text()
    terminal.process.send("one\x1b\rtwo\\\rthree\r")
    terminal.wait_for_prompt(2)
    assert asked(tmp_path, "lines") == ["one\ntwo\nthree"]
    terminal.say("/save birthday")
    for typed, completed in (
        ("/he", "/help"),
        ("/set temp", "/set temperature"),
        ("/load bi", "/load birthday"),
        ("/file no", "/file notes of mine.txt"),
    ):
        terminal.process.send(typed + "\t")
        terminal.wait_for(lambda text, end=completed: text.endswith(f"> {end}"))
        number = terminal.num_prompts()
        terminal.process.send("\r")
        terminal.wait_for_prompt(number + 1)
        assert "Error" not in terminal.text()
    terminal.process.send("plain te\t")  # a message is not completed
    terminal.wait_for(lambda text: text.endswith("> plain te"))
    terminal.interrupt()
    assert terminal.leave() == 0
    again = chat("--session", "birthday")
    assert "Continuing birthday: 1 turn." in again.text()
    again.process.send("\x1b[A")
    again.wait_for(lambda text: text.endswith("> /file notes of mine.txt"))


def asked(folder, session: str) -> list[str]:
    """The questions that a session holds."""
    saved = json.loads((folder / "localspec" / "sessions" / f"{session}.json").read_text())
    return [each["content"] for each in saved["messages"] if each["role"] == "user"]


@pytest.mark.parametrize("kind", ["xterm-256color", "dumb"])
def test_lines_between_quotes_are_one_message(chat, tmp_path, kind):
    """None of them is a command, and Ctrl-C leaves them; with and without a line editor."""
    terminal = chat(*TERSE, "--session", "quoted", TERM=kind)

    message = "  indented\n\n/quit\nends in \\\nlast"
    for number, (typed, kept) in enumerate(
        [(f'"""\n{message}"""', message), ('"""Hello!"""', "Hello!")], start=1
    ):
        terminal.process.send(typed.replace("\n", "\r") + "\r")
        terminal.wait_for(
            lambda text, number=number: (
                text.count("tokens/s") == number and text.endswith("\n>")
            )
        )
        assert asked(tmp_path, "quoted")[-1] == kept
        terminal.process.send('"""never sent\rand more')
        terminal.wait_for(
            lambda text: re.search(r'> """never sent\n *and more$', text) is not None
        )
        terminal.process.send("\x03")
        terminal.wait_for(lambda text: text.endswith("\n>"))
    assert len(asked(tmp_path, "quoted")) == 2
    if kind != "dumb":
        terminal.process.send("\x1b[A\x1b[A")
        terminal.wait_for(lambda text: text.endswith('\n  last"""'))
        terminal.interrupt()
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


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
    assert "no turn to remove" in terminal.say("/undo")
    assert "message: long.txt" in terminal.say("/file")
    assert terminal.leave() == 0
    assert terminal.has_its_modes()


def test_an_answer_that_is_slower_than_measured_before_says_so(tmp_path):
    """What was measured is kept between runs. Here it is made a thousand times as fast."""
    options = ("chat", "--ignore-eos", "--max-tokens", "200", "--proposer", "draft")
    cache = tmp_path / "cache"

    def status() -> str:
        terminal = Terminal(tmp_path, *options, columns=100, XDG_CACHE_HOME=str(cache))
        try:
            terminal.wait_for_prompt(1)
            text = terminal.say(STORY)
            assert terminal.leave() == 0
        finally:
            terminal.close()
        (line,) = (line for line in text.split("\n") if "tokens/s" in line)
        return line

    status()
    (profile,) = (cache / "localspec" / "profiles").iterdir()
    kept = json.loads(profile.read_text())
    fastest = kept["learned"]["threads"]
    assert fastest
    kept["learned"]["threads"] = {
        size: {length: seconds / 1000 for length, seconds in known.items()}
        for size, known in fastest.items()
    }
    profile.write_text(json.dumps(kept))
    assert re.search(r" · \d+(\.\d)? times slower than measured before", status())


def test_a_dumb_terminal_gets_plain_text(chat):
    terminal = chat(*TERSE, TERM="dumb")
    terminal.process.send("Hello!\r")
    terminal.wait_for(lambda text: "tokens/s" in text)
    assert terminal.leave() == 0
    assert b"\x1b" not in terminal.received
    assert terminal.has_its_modes()


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


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "in an answer"), (signal.SIGHUP, "at the prompt")],
)
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
    """The question is in the history of what was typed."""
    terminal = chat("--session", "s", *TERSE[:2])
    terminal.say("Hello!")
    terminal.say("/set ignore_eos on")
    terminal.process.send(STORY + "\r")
    terminal.wait_for(has_begun(STORY))
    terminal.process.kill(signal.SIGKILL)
    terminal.ended()
    again = chat("--session", "s", *TERSE)
    again.process.send("\x1b[A\r")
    again.wait_for_prompt(2)
    assert "Removed: Tell me" in again.say("/undo")
    assert "Removed: Hello!" in again.say("/undo")


def test_an_answer_of_generate_is_wrapped_at_words_on_a_terminal(tmp_path):
    """Marks of tokens do not keep it from being wrapped."""
    asked = ("--temperature", "0", "--show-draft", STORY)
    terminal = Terminal(tmp_path, "generate", *asked, columns=40, rows=100)
    assert terminal.ended() == 0
    for meaning in ("drafted and accepted", "rejected", "fully accepted", "was drafted\n"):
        assert meaning in terminal.text()
    assert max(map(len, terminal.text().split("\n"))) < 40
    assert b"\x1b[32m" in terminal.received
    terminal.close()
    bare = Terminal(tmp_path, "generate", *asked, NO_COLOR="1")
    assert bare.ended() == 0
    assert not re.search(rb"\x1b\[(3[1-7]|9[0-7])m", bare.received)
    assert "was drafted\n[" in bare.text()
    bare.close()
