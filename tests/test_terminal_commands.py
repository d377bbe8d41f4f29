"""What a person types in a chat besides messages, on a terminal of the real command."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from vision_maker import random_picture, write_vision_pair

import localspec
from localspec.chat.template import BUILT_IN
from terminal import Terminal

pytestmark = pytest.mark.process

TERSE = ("--temperature", "0", "--max-tokens", "24", "--draft-tokens", "3")
STORY = "Tell me a story about a fox."


@pytest.fixture
def chat(tmp_path):
    """Starts a chat with options, ready for the first message. All are ended at the end."""
    opened = []

    def start(*arguments, **more):
        terminal = Terminal(tmp_path, "chat", *arguments, *TERSE, **more)
        opened.append(terminal)
        terminal.wait_for(lambda text: text.endswith("\n>"))
        return terminal

    yield start
    for terminal in opened:
        terminal.close()


def last_part(text: str) -> str:
    """The last message that was typed, and what stands behind it."""
    return text.rpartition("\n> ")[2]


def unwrapped(text: str) -> str:
    """The text as if the window was wide enough."""
    return " ".join(text.split())


def saved_messages(tmp_path, name):
    """What the session holds: the role's first letter and the content of each message."""
    path = tmp_path / "localspec" / "sessions" / f"{name}.json"
    messages = json.loads(path.read_text())["messages"]
    return [(message["role"][0], message["content"]) for message in messages]


def test_an_answer_that_was_cut_goes_on(chat, tmp_path):
    """As one answer of the conversation, which is then what it would have been at once."""
    terminal = chat("--session", "s")
    assert "/continue" in unwrapped(terminal.say(STORY))
    for _ in range(20):
        if "there is no answer here that was cut" in unwrapped(terminal.say("/continue")):
            break
    with localspec.load(draft_tokens=3) as engine:
        whole = engine.chat().send(STORY, temperature=0).reply().text
    assert len(whole) > 100
    assert saved_messages(tmp_path, "s") == [("u", STORY), ("a", whole)]


def test_what_goes_on_is_wrapped_as_what_it_was(chat):
    """Words that follow a blank do not make it every line's, and a cut word comes whole."""
    terminal = chat(columns=40, rows=100)
    shown = last_part(terminal.say(STORY)).partition("\nCut off")[0].split("\n")[1:]
    for _ in range(2):
        lines = last_part(terminal.say("/continue")).partition("\nCut off")[0].split("\n")[1:]
        assert len(lines) > 1
        assert [line for line in lines if line.startswith(" ")] == []
        shown += lines
    with localspec.load(draft_tokens=3) as engine:
        whole = engine.chat().send(STORY, temperature=0, max_tokens=72).reply().text.split()
    words = " ".join(shown).split()
    assert len(whole) <= len(words) <= len(whole) + 3
    for number, word in enumerate(whole):  # a cut word stands there twice, first in part
        if words[number] != word:
            assert word.startswith(words.pop(number))
            assert words[number] == word


def test_nothing_is_said_of_speed_if_nobody_wants_it(chat):
    for arguments, typed, back in (
        ((), "/set quiet on", "/set quiet off"),
        (("--quiet",), "/set quiet", "/set --quiet off"),
    ):
        terminal = chat(*arguments)
        assert last_part(terminal.say(typed)).split("\n")[1] == "quiet on"
        assert "tokens" not in last_part(terminal.say("Hello!")).replace("after 24 tokens", "")
        assert "tokens/s" in last_part(terminal.say("/stats"))
        assert last_part(terminal.say(back)).split("\n")[1] == "quiet off"
        assert re.search(r"\n\d+ tokens .*context \d+% full\n", terminal.say("Hello!"))
        assert terminal.leave() == 0


def test_a_warning_of_a_pair_is_given_once(tmp_path, demo_target, demo_draft):
    """On a terminal; another pair's still comes, and a log has it every time."""
    import shutil
    import subprocess

    from terminal import LOCALSPEC

    def said(target, draft):
        pair = ("--target", str(target), "--draft", str(draft), "--max-tokens", "2", "Hi")
        terminal = Terminal(tmp_path, "generate", *pair, columns=60)
        assert terminal.ended() == 0
        terminal.close()
        return unwrapped(terminal.text())

    other = tmp_path / "other.gguf"
    shutil.copy(demo_target, other)
    warning = f"{demo_target.name} drafts for {demo_draft.name} and is larger: target and draft"
    assert warning in said(demo_draft, demo_target)
    assert "drafts for" not in said(demo_draft, demo_target)
    assert f"other.gguf drafts for {demo_draft.name}" in said(demo_draft, other)
    assert "drafts for" not in said(demo_draft, demo_target) + said(demo_draft, other)
    home = {name: str(tmp_path / "new") for name in ("HOME", "XDG_STATE_HOME")}
    pair = ("--target", demo_draft, "--draft", demo_target, "--max-tokens", "2", "Hi")
    for _ in range(2):
        done = subprocess.run(
            [LOCALSPEC, "generate", *pair],
            capture_output=True,
            text=True,
            env=os.environ | home,
        )
        assert warning in done.stderr


def test_a_session_can_have_a_name_of_any_letters(chat, tmp_path):
    """And is found by it however it is written."""
    terminal = chat()
    terminal.say("Hello!")
    assert "Saved as Grüße 日本語, and from" in terminal.say("/save Grüße 日本語")
    listed = last_part(terminal.say("/sessions"))
    assert re.search(
        r"^Grüße 日本語 +1 turn  just now +\d+ B  open$", _narrow(listed), re.MULTILINE
    )
    assert "Saved as Grüße 日本語, and from" in terminal.say("/save GRU\u0308SSE 日本語")
    assert "cannot be the name of a session" in last_part(terminal.say("/save ../x"))
    assert terminal.leave() == 0
    again = chat("--session", "grüsse 日本語")
    assert "Continuing Grüße 日本語: 1 turn." in unwrapped(_narrow(again.text()))
    assert again.leave() == 0
    assert len(list((tmp_path / "localspec" / "sessions").glob("*.json"))) == 1


def _narrow(text: str) -> str:
    """Wide characters as one each: the screen has an empty cell behind every one."""
    return re.sub(r"([\u2e80-\uffff]) ?(?=[\u2e80-\uffff])", r"\1", text)


@pytest.mark.parametrize("typed", ["/quit", "/exit", "/bye", "exit", "quit", "exit "])
def test_a_chat_can_be_left_by_a_word(chat, typed):
    terminal = chat()
    terminal.process.send(typed + "\r")
    assert terminal.ended() == 0
    assert terminal.has_its_modes()
    assert "tokens" not in terminal.text().partition(typed)[2]


def test_a_word_among_others_is_a_message(chat, tmp_path):
    terminal = chat("--session", "s")
    for message in ("exit now", " quit"):
        assert "tokens/s" in last_part(terminal.say(message))
    assert [text for who, text in saved_messages(tmp_path, "s") if who == "u"] == [
        "exit now", " quit",
    ]  # fmt: skip
    assert "/retry" in last_part(terminal.say("/?"))
    assert terminal.leave() == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("top-p 0.5", "top_p 0.5"),
        ("--top-p 0.5", "top_p 0.5"),
        ("--top-p=0.5", "top_p 0.5"),
        ("repeat-penalty 1.5", "repetition_penalty 1.5"),  # the flag has another name
        ("repeat_last_n 5", "penalty_last_n 5"),
        ("--max-tokens none", "max_tokens none"),
        ("seed 7", "seed 7"),
        ("ignore-eos off", "ignore_eos off"),
    ],
)
def test_settings_have_the_names_of_flags_too(settings_chat, typed, said):
    assert last_part(settings_chat.say(f"/set {typed}")).split("\n")[1] == said
    shown = settings_chat.say(f"/set {re.split('[ =]', typed)[0]}")
    assert last_part(shown).split("\n")[1] == said


@pytest.mark.parametrize(
    ("typed", "wrong", "hint"),
    [
        ("top-p 1.5", "top_p is 1.5", "Choose above 0 up to 1"),
        ("top-p high", "top_p is 'high'", "Choose above 0 up to 1"),
        ("top-k 2.5", "top_k is '2.5'", "Choose 0 (off) or more"),
        ("temperature nan", "temperature is nan", "Choose 0 to 100"),
        ("max-tokens 0", "max_tokens is 0", "Choose 1 or more"),
        ("max-tokens many", "max_tokens is 'many'", "Choose 1 or more"),
        ("seed -1", "seed is -1", "Choose a whole number, 0 to"),
        ("seed x", "seed is 'x'", "Choose a whole number, 0 to"),
        ("think never", "think is 'never'", "Choose show, dim, hide"),
        ("ignore-eos perhaps", "ignore_eos is 'perhaps'", "Choose on or off"),
        ("temprature 1", "there is no setting 'temprature'", "Perhaps temperature?"),
        ("temp 1", "there is no setting 'temp'", "Perhaps temperature?"),
        ("--max-token 1", "there is no setting '--max-token'", "Perhaps max_tokens?"),
        ("num_predict 9", "there is no setting 'num_predict'", "Perhaps max_tokens?"),
        ("num_ctx 9", "there is no setting 'num_ctx'", "Perhaps ctx?"),
        ("nonsense", "there is no setting 'nonsense'", "/set lists all"),
        ("--ctx 9", "--ctx cannot be changed during a chat", "localspec chat --ctx"),
        ("logit_bias 1", "--logit-bias cannot be changed", "localspec chat --logit-bias"),
        ("system Be brief.", "system is not a setting", "It is a command: /system"),
        ("mirostat_tau 5", "mirostat_tau cannot be set", "min_p"),
    ],
)
def test_a_wrong_setting_is_told_at_once_and_changes_nothing(settings_chat, typed, wrong, hint):
    before = last_part(settings_chat.say("/set")).partition("\n")[2]
    said = unwrapped(last_part(settings_chat.say(f"/set {typed}")))
    assert f"Error: {wrong}" in said
    assert "Hint: " in said
    assert hint in said
    assert last_part(settings_chat.say("/set")).partition("\n")[2] == before


@pytest.fixture(scope="module")
def settings_chat(tmp_path_factory):
    """One chat for all settings: none of them asks the model anything."""
    terminal = Terminal(tmp_path_factory.mktemp("settings"), "chat", *TERSE, rows=50)
    terminal.wait_for_prompt(1)
    yield terminal
    terminal.close()


def test_a_setting_that_the_rule_forbids_is_refused_when_it_is_set(chat):
    terminal = chat("--rule", "greedy")
    said = unwrapped(last_part(terminal.say("/set temperature 0.5")))
    assert "Error: the rule greedy needs temperature 0" in said
    assert "temperature 0.0" in terminal.say("/set temperature")
    assert terminal.leave() == 0


def test_a_session_says_that_it_goes_on_and_where(chat, tmp_path):
    terminal = chat("--session", "french")
    assert "french is a new session." in terminal.text()
    terminal.say("Hello!")
    long = "word " * 100 + "end"
    terminal.process.send(long + "\r")
    terminal.wait_for_prompt(3)
    assert terminal.leave() == 0
    question, answer = (text for _, text in saved_messages(tmp_path, "french")[-2:])
    assert question == long
    path = tmp_path / "localspec" / "sessions" / "french.json"
    kept = json.loads(path.read_text())
    kept["messages"][-1]["content"] = "first " + "much " * 200 + "last"
    path.write_text(json.dumps(kept))
    again = chat("--session", "french")
    said = unwrapped(again.text())
    assert re.search(
        r"Continuing french: 2 turns\. The last one: > word (word )+… … much (much )+last >",
        said,
    )
    assert len(said) < 900
    assert "first" not in said
    assert answer
    assert again.leave() == 0


def test_sessions_are_listed_and_near_names_are_told(chat):
    terminal = chat()
    assert "no sessions yet" in terminal.say("/sessions")
    terminal.say("Hello!")
    terminal.say("/save french")
    listed = last_part(terminal.say("/sessions"))
    assert re.search(r"^french +1 turn  just now +\d+ B  open$", listed, re.MULTILINE)
    said = unwrapped(last_part(terminal.say("/load frnch")))
    assert "Error: there is no session 'frnch' Hint: Perhaps french?" in said
    assert terminal.leave() == 0


def test_edit_brings_the_last_question_back_and_replaces_it(chat, tmp_path):
    """With the files that went with it, which do not stand in the line."""
    (tmp_path / "notes.txt").write_text("remember the milk")
    terminal = chat("--session", "s")
    assert "Error: there is no question yet" in terminal.say("/edit")
    first = last_part(terminal.say("Hello!"))
    terminal.say("/file notes.txt")
    terminal.say("What is that?")
    terminal.process.send("/edit\r")
    text = terminal.wait_for(lambda text: text.endswith("\n> What is that?"))
    assert "in place of the old one" in unwrapped(text)
    number = terminal.num_prompts()
    terminal.process.send("\x7f, then?\r")
    terminal.wait_for_prompt(number + 1)
    files = "notes.txt:\n```\nremember the milk\n```\n\n"
    asked = [text for who, text in saved_messages(tmp_path, "s") if who == "u"]
    assert asked == ["Hello!", f"{files}What is that, then?"]
    assert "message: none" in terminal.say("/file")
    # Two turns back it is the first question's turn, whose answer is the same again.
    terminal.say("/undo")
    terminal.process.send("/edit\r")
    terminal.wait_for(lambda text: text.endswith("\n> Hello!"))
    number = terminal.num_prompts()
    terminal.process.send("\r")
    again = last_part(terminal.wait_for_prompt(number + 1))
    assert again.split("\n")[:2] == first.split("\n")[:2]
    assert len(saved_messages(tmp_path, "s")) == 2
    assert terminal.leave() == 0


def test_an_edit_that_is_not_sent_leaves_the_question(chat, tmp_path):
    """Emptied, or given up for a command: what is asked next is a question of its own."""
    terminal = chat("--session", "s")
    terminal.say("Hello!")
    for number, ends in enumerate(["\x03", "\x15\r", "\x15/system\r"]):
        terminal.process.send("/edit\r")
        terminal.wait_for(lambda text: text.endswith("\n> Hello!"))
        prompts = terminal.num_prompts()
        terminal.process.send(ends)
        terminal.wait_for_prompt(prompts + 1)
        terminal.say(f"And {number}?")
        terminal.say("/undo")
    assert terminal.text().count("The question is unchanged.") == 2
    assert [text for who, text in saved_messages(tmp_path, "s") if who == "u"] == ["Hello!"]
    assert terminal.leave() == 0


def test_an_edited_question_that_does_not_fit_leaves_the_old_one(chat, tmp_path):
    terminal = chat("--session", "s", "--ctx", "128")
    terminal.say("Hello!")
    before = saved_messages(tmp_path, "s")
    terminal.process.send("/edit\r")
    terminal.wait_for(lambda text: text.endswith("\n> Hello!"))
    number = terminal.num_prompts()
    terminal.process.send(" word" * 200 + "\r")
    said = terminal.wait_for_prompt(number + 1)
    assert "the context holds 128" in unwrapped(said)
    assert saved_messages(tmp_path, "s") == before
    assert terminal.leave() == 0


def test_a_dumb_terminal_cannot_edit_and_says_so(chat):
    terminal = chat(TERM="dumb")
    terminal.process.send("Hello!\r")
    terminal.wait_for(lambda text: "tokens/s" in text)
    terminal.process.send("/edit\r")
    terminal.wait_for(lambda text: "Hint: Use /undo, then ask again." in text)
    terminal.process.send("quit\r")
    assert terminal.ended() == 0


def test_an_answer_that_was_cut_says_so_and_why(chat):
    terminal = chat("--ignore-eos", "--ctx", "96", columns=100)
    cut = "\nCut off after 24 tokens. For more: --max-tokens; in a chat /continue, or /set"
    assert cut in terminal.say("Hello!")
    terminal.say("/set max_tokens none")
    cut = "\nCut off: the context of 96 tokens is full. For more: --ctx, up to 2048.\n"
    assert cut in last_part(terminal.say("Hello!"))
    terminal.say("/set ignore_eos off")
    assert "Cut off" not in last_part(terminal.say("What is 2 plus 3?"))
    assert terminal.leave() == 0


def test_a_path_of_an_image_that_is_dropped_is_no_message(chat, tmp_path):
    """As terminals type it: in quotes, with escapes, as a URL, several of them."""
    picture = tmp_path / "my photo.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "notes.txt").write_text("remember the milk")
    terminal = chat(columns=160)
    refused = "Error: my photo.png is an image; this model reads text"
    for typed in (
        f"'{picture}'",
        str(picture).replace(" ", "\\ "),
        str(picture),
        f"file://{picture}".replace(" ", "%20"),
        f"notes.txt '{picture}'",
        f"/file {picture}",
        "my photo.png",
    ):
        said = last_part(terminal.say(typed))
        assert refused in said
        assert "tokens" not in said
    for typed in (f"What is '{picture}'?", "It's a photo.png", "notes.txt"):
        assert "tokens/s" in last_part(terminal.say(typed))
    assert terminal.leave() == 0


def test_a_model_that_sees_is_shown_images(chat, tmp_path):
    """By a command, or dropped on the terminal; a line says what they take."""
    template = {"tokenizer.chat_template": BUILT_IN["chatml"]}
    target, mmproj = write_vision_pair(tmp_path, "gemma3", extra=template)
    picture = tmp_path / "my photo.png"
    picture.write_bytes(random_picture(1, 40, 30).png())
    (tmp_path / "notes.txt").write_text("remember the milk")
    told = re.compile(r"my photo.png \(40 by 30 pixels, \d+ tokens\) is attached")
    terminal = chat(f"--target={target}", f"--mmproj={mmproj}", columns=160)
    for typed in (f"/image {picture}", f"/file {picture}", f"'{picture}'"):
        assert told.search(last_part(terminal.say(typed)))
    assert "tokens/s" in last_part(terminal.say("what is it"))
    said = last_part(terminal.say(f"notes.txt '{picture}'"))
    assert told.search(said)
    assert "notes.txt (17 characters) is attached" in said
    assert "is not a picture" in last_part(terminal.say("/image notes.txt"))
    assert terminal.leave() == 0


def test_notes_and_errors_end_lines_between_words(chat):
    """At forty columns; what is explained by /help has a column of its own."""
    terminal = chat(columns=40, rows=80)
    assert "\nHint: Perhaps temperature? /set lists\nall." in terminal.say("/set temprature 1")
    long = "x" * 50
    assert f"Error:\n{long[:40]}\n{long[40:]} does not exist\n" in terminal.say(f"/file {long}")
    shown = last_part(terminal.say("/help"))
    assert "\n/edit                change the last\n" + " " * 21 + "question and ask\n" in shown
    assert max(map(len, shown.split("\n"))) < 40
    assert terminal.leave() == 0


def test_an_answer_of_generate_is_wrapped_at_words_on_a_terminal(tmp_path):
    """A pipe gets it as it is; marks of tokens do not keep it from being wrapped."""
    import subprocess

    from terminal import LOCALSPEC

    asked = ("--temperature", "0", "--draft-tokens", "3", "--threads", "1", STORY)
    piped = subprocess.run(
        [LOCALSPEC, "generate", *asked], capture_output=True, text=True, check=True
    )
    assert max(map(len, piped.stdout.split("\n"))) > 40
    for more in ((), ("--show-draft",)):
        terminal = Terminal(tmp_path, "generate", *more, *asked, columns=40, rows=100)
        assert terminal.ended() == 0
        shown = terminal.text().partition("nothing was drafted\n")[2] or terminal.text()
        assert max(map(len, shown.split("\n"))) < 40
        assert shown.split() == piped.stdout.split()
        terminal.close()
