"""The command line on the real demo pair: output, errors, exit codes, harmless text."""

from __future__ import annotations

import json

from command_line import run
from gguf_maker import write_random_model
from localspec.cli import exit_codes
from localspec.cli.quoted_text import quoted_together

TERSE = ["--temperature", "0", "--max-tokens", "12"]


def test_generate_prints_the_answer_and_statistics_if_asked():
    result = run("generate", *TERSE, "Hello!")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "tokens/s" in run("generate", *TERSE, "--stats", "Hello!").stderr
    assert result.stdout.strip()
    assert result.stdout.endswith("\n")


def test_generate_json_has_what_programs_need():
    result = run("generate", "--json", "--seed", 7, "Tell me a story about a fox.")
    answer = json.loads(result.stdout)
    stats = answer["stats"]
    assert result.stderr == ""
    assert answer["finish_reason"] == "stop"
    assert answer["completion_tokens"] == len(answer["token_ids"])
    assert (answer["seed"], answer["rule"], answer["draft_tokens"]) == (7, "coupled", "auto")
    assert answer["prompt_tokens"] > 5
    assert stats["num_steps"] + stats["num_accepted"] in (
        answer["completion_tokens"],
        answer["completion_tokens"] + 1,  # a drafted end token leaves no bonus
    )
    assert {"tokens_per_s", "acceptance_rate", "accepted_per_position"} <= set(stats)


def test_generate_json_with_logprobs():
    answer = json.loads(run("generate", "--json", *TERSE, "--logprobs", 2, "Hello!").stdout)
    assert [each["token_id"] for each in answer["logprobs"]] == answer["token_ids"]
    first = answer["logprobs"][0]
    assert answer["text"].startswith(first["text"])
    assert first["logprob"] == first["top"][0]["logprob"] <= 0.0 == first["logprob_after"]
    assert [each["token_id"] for each in first["top_after"]] == [first["token_id"]]
    assert run("generate", "--logprobs", 2, "Hello!").exit_code == 2


def test_generate_raw_continues_the_text_itself():
    raw = json.loads(run("generate", "--json", "--raw", *TERSE, "Once upon").stdout)
    templated = json.loads(run("generate", "--json", *TERSE, "Once upon").stdout)
    assert raw["prompt_tokens"] < templated["prompt_tokens"]


def test_generate_stops_at_a_stop_string():
    asked = "--temperature", 0, "--draft-tokens", 3, "Tell me a story about an owl."
    whole, cut = run("generate", *asked).stdout, run("generate", "--stop", ". ", *asked)
    assert cut.stdout.strip() == whole.partition(". ")[0].strip()


def asked(stdin: str | None, *arguments: object) -> tuple[str, int]:
    """The answer, and how many tokens were asked."""
    result = run("generate", "--json", *TERSE, *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    return answer["text"], answer["prompt_tokens"]


def test_generate_puts_files_and_a_pipe_before_the_prompt(tmp_path):
    """Without a prompt the last of them is the prompt."""
    notes = tmp_path / "notes.txt"
    notes.write_text("remember the milk")
    log = "stdin:\n```\nerror 7\n```\n\n"
    file = "notes.txt:\n```\nremember the milk\n```\n\n"
    assert asked("error 7\n", "-f", notes, "Why?") == asked(None, f"{file}{log}Why?")
    assert asked("error 7", "-f", "-", "-f", notes, "Why?") == asked(None, f"{log}{file}Why?")
    assert asked(" \n", "Why?") == asked("Why?", "-f", "-") == asked(None, "Why?")
    assert asked("Why?", "-f", notes) == asked(None, f"{file}Why?")
    assert asked(None, "--raw", "-f", notes) == asked("remember the milk", "--raw")


def test_generate_tells_a_pipe_that_the_context_is_full_not_of_its_own_limit():
    result = run("generate", "--ctx", 64, "--ignore-eos", "Hello!")
    assert result.exit_code == 0
    assert "Cut off: the context of 64 tokens is full" in result.stderr
    assert run("generate", "--max-tokens", 3, "Hello!").stderr == ""
    lines = run("chat", "--ctx", 64, "--ignore-eos", stdin="Hello!\n")
    assert "Cut off: the context of 64 tokens is full" in lines.stderr
    assert run("chat", "--max-tokens", 3, stdin="Hello!\n").stderr == ""


def test_chat_on_a_pipe_keeps_a_session_and_has_no_commands_but_the_end(own_folders):
    for stdin in ("exit\n/retry\n/exit\nHello!\n", "And then?\n"):
        assert run("chat", *TERSE, "--session", "s", stdin=stdin).exit_code == 0
    (saved,) = own_folders.rglob("s.json")
    contents = [message["content"] for message in json.loads(saved.read_text())["messages"]]
    assert contents[::2] == ["exit", "/retry", "And then?"]
    for word in ("/exit", "/quit", "/bye"):
        assert run("chat", *TERSE, stdin=f"{word}\nHello!\n").stdout == ""
    saved.write_text("{}")
    result = run("chat", "--session", "s", stdin="Hi\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not a localspec session" in result.stderr


def test_chat_tells_once_that_turns_are_forgotten():
    lines = "".join(f"Tell me a story about number {n}.\n" for n in range(8))
    result = run("chat", "--ctx", 200, "--max-tokens", 30, stdin=lines)
    assert result.exit_code == 0
    assert result.stderr.count("oldest turns are dropped") == 1


def test_lines_between_quotes_on_a_pipe_are_one_message(own_folders):
    """As they are, up to the end of the quotes; the other lines are messages of their own."""
    given = 'Hello!\n"""\n  a list:\n\n/exit\n"""\n"""one"""\n""""""\n/exit\nnever\n'
    options = ("--session", "quoted", "--max-tokens", "4")
    assert run("chat", *options, stdin=given).exit_code == 0
    listed = json.loads(run("sessions", "export", "quoted", "--json").stdout)["messages"]
    questions = [each["content"] for each in listed if each["role"] == "user"]
    assert questions == ["Hello!", "  a list:\n\n/exit", "one"]
    torn = run("chat", *options, stdin='"""and\nso on')
    assert torn.exit_code == exit_codes.USAGE
    assert 'ends within the text that begins with """and' in torn.stderr


def test_a_long_text_between_quotes_is_read_in_time():
    """20 MB, which take longer than a test may if all of it is looked at for each line."""
    lines = ['"""', *["é" * 10] * 2_000_000, '"""', "Hello!"]
    quoted, hello = quoted_together(iter(lines))
    assert quoted == "\n".join(lines[:-1])
    assert hello == "Hello!"


def test_a_pipe_goes_on_after_a_message_that_is_too_long():
    result = run("chat", *TERSE, stdin="word " * 3000 + "\nHello!\n")
    assert result.exit_code == 1  # a pipe is told that something was left out
    assert "the context holds 2048" in result.stderr
    assert result.stdout.strip()


def test_a_broken_template_file_is_an_error(tmp_path):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if %}")
    result = run("generate", "x", "--chat-template", broken)
    assert result.exit_code == 1
    assert "chat template cannot be used" in result.stderr
    broken.write_bytes(b"\xff\xfea")
    assert "--chat-template" in run("generate", "x", "--chat-template", broken).stderr


def test_control_characters_of_a_model_are_shown_not_sent(tmp_path, demo_target):
    """A model whose every token is an escape sequence that would set the window's title."""
    escape = "ě]0;owned" + chr(0x100 + 0x07)  # byte-level BPE spells bytes 1B and 07 so
    tokens = dict.fromkeys(range(300, 4096), escape)
    evil = write_random_model(
        tmp_path / "evil.gguf",
        demo_target,
        replace_tokens={i: text + str(i) for i, text in tokens.items()},
    )
    for arguments in (
        ["generate", "x"],
        ["generate", "--show-draft", "x"],
        ["chat"],
    ):
        result = run(*arguments, "--target", evil, "--max-tokens", 20, stdin="hi\n")
        assert result.exit_code == 0
        assert "␛]0;owned␇" in result.stdout
        assert "\x1b" not in result.stdout
        assert "\x07" not in result.stdout
    exact = json.loads(
        run("generate", "x", "--json", "--target", evil, "--max-tokens", 20).stdout
    )
    assert "\x1b]0;owned\x07" in exact["text"]
