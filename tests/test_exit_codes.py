"""Whoever names what there is not used the command line wrongly: exit code 2, in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from localspec.cli import exit_codes, main
from standin_hub import StandinHub

UNKNOWN = [
    "nope", "models nope", "chat --nope", "models add --nope", "completion nope",
    # presets
    "chat --preset nope", "generate --preset nope Hi", "bench --preset nope",
    "verify --preset nope", "explain nope", "explain qwen2-7b@nope", "download nope",
    "download demo nope", "models path nope", "models remove nope", "models verify nope",
    "models verify demo nope",
    # roles without the model that they belong to
    "generate --draft nope Hi", "explain --head nope",
    # rules, proposers, templates, and what the models compute with
    "generate --rule nope Hi", "generate --proposer nope Hi", "chat --draft-tokens nope",
    "generate --chat-template nope Hi", "chat --cache-type-k nope", "chat --flash-attn nope",
    "generate --tensor-split nope Hi",
    # samplers, tokens
    "generate --mirostat 2 Hi", "generate --logit-bias nope Hi",
    "generate --ban 'several tokens of a text' Hi", "generate --top-p 2 Hi",
    # sessions
    "chat --session ../nope", "chat --session con", "chat --keep-caches",
    # files
    "generate -f nope.txt Hi", "bench --prompts nope.txt", "verify --prompts nope.txt",
    "bench --plot nope", "bench --plot nope/x.png",
]  # fmt: skip


@pytest.mark.parametrize("line", UNKNOWN)
def test_unknown_names_are_usage_errors(hub: StandinHub, line):
    words = [first or other for first, other in re.findall(r"'([^']*)'|(\S+)", line)]
    done = CliRunner().invoke(main, words, input="")
    assert done.exit_code == exit_codes.USAGE, done.output
    assert done.stdout == ""
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("run llama3", "localspec chat MODEL"), ("list", "localspec models."),
        ("ls", "localspec models."), ("pull qwen3:8b", "localspec download PRESET"),
        ("get x", "localspec download PRESET"), ("ps", "localspec serve"),
        ("stop x", "nothing runs in the background"), ("show x", "localspec explain MODEL"),
        ("rm x", "localspec models remove PRESET"), ("cp a b", "localspec models alias"),
        ("create x -f y", "localspec models add NAME"), ("help", "localspec --help"),
        ("models list", "localspec models."), ("models rm x", "localspec models remove"),
        ("models show x", "localspec explain"), ("models pull x", "localspec download"),
        ("sessions ls", "localspec sessions."), ("sessions rm x", "localspec sessions remove"),
        ("chatt", "Perhaps chat?"), ("gen", "Perhaps generate?"), ("models dfault", "default?"),
    ],
)  # fmt: skip
def test_what_other_programs_call_it_is_answered_with_ours(line, ours):
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == exit_codes.USAGE
    (error,) = (text for text in done.stderr.splitlines() if text.startswith("Error: "))
    assert "No such command" in error
    assert ours in error


def test_the_page_has_every_code():
    page = (Path(__file__).parent.parent / "docs/cli.md").read_text("utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    ours = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert listed == ours | {0}
