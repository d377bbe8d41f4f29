"""Errors name what helps: arguments in Python, options on the command line, and no more."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import localspec
from gguf_maker import write_random_model
from localspec.cli import main
from localspec.cli.flags import THEIRS
from localspec.cli.screen import in_flags

PACKAGE = Path(localspec.__file__).parent
OF_COMMANDS = ("cli", "server", "checks", "__main__.py")  # what no application calls


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments], input="")
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def base_model(tmp_path: Path, demo_target: Path) -> Path:
    """A model without a chat template, trained for 64 tokens."""
    return write_random_model(
        tmp_path / "base.gguf",
        demo_target,
        drop=("tokenizer.chat_template",),
        context_length=64,
    )


def flags_of(command: click.Command) -> Iterator[str]:
    """The long options of a command and of those below it."""
    for param in command.params:
        yield from (opt for opt in (*param.opts, *param.secondary_opts) if opt.startswith("--"))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from flags_of(below)


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a module, but for docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # fmt: skip
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documented:
            yield node.value


def test_no_option_of_a_command_is_in_what_applications_read():
    ours = set(flags_of(main)) - {"--version", "--help"}
    found = [
        (path.name, text)
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in OF_COMMANDS
        and path.name != "choice.py"  # of commands alone
        for text in texts_of(path)
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
        if flag in ours
        and f"localspec models alias {{name}} {flag}" not in text
        and not text.endswith(" --clear")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Choose context_length=64 or less.", "Choose --ctx 64 or less."),
        ("more (context_length=…).", "more (--ctx)."),
        ('On (flash_attention="on").', "On (--flash-attn on)."),
        ("Or draft_tokens=0; force=True loads it.", "Or --no-draft; --force loads it."),
        ("draft_tokens=4 head=… is", "--draft-tokens 4 --head is"),
        ("the head and its target: a template", "the head and its target: a template"),
    ],
)
def test_commands_say_their_options(said, shown):
    assert in_flags(said) == shown


def test_a_pair_that_is_none_is_told_to_each_in_its_words(tmp_path, demo_target):
    other = write_random_model(
        tmp_path / "other.gguf",
        demo_target,
        replace_tokens={n: f"other{n}" for n in range(1000, 4096)},
    )
    with pytest.raises(localspec.PairError) as caught:
        localspec.load(demo_target, draft=other)
    assert caught.value.hint.endswith("leave it away (draft_tokens=0).")
    told = run("generate", "Hi", "--target", demo_target, "--draft", other)
    assert "leave it away (--no-draft)." in told.stderr


def refused(ask: Callable[[], object]) -> str:
    """What is said to do about too many tokens."""
    with pytest.raises(localspec.ContextError) as caught:
        ask()
    return caught.value.hint


@pytest.mark.parametrize(("length", "has_more"), [(32, True), (64, False)])
def test_a_longer_context_than_the_training_is_never_the_advice(base_model, length, has_more):
    long = "word " * 100
    with localspec.load(base_model, context_length=length, num_threads=1) as engine:
        chat = engine.chat(template="chatml")
        hints = [
            refused(lambda: engine.generate_raw(long).reply()),
            refused(lambda: chat.send(long).reply()),
        ]
    for hint in hints:
        assert ("up to 64 tokens (context_length=…)" in hint) is has_more
        assert ("trained for no longer" in hint) is not has_more
    options = ["--raw", "--target", base_model, "--ctx", length]
    assert ("up to 64 tokens (--ctx)" in run("generate", long, *options).stderr) is has_more
    cut = run("generate", "a", *options, "--ignore-eos").stderr
    more = (
        "For more: --ctx, up to 64."
        if has_more
        else "The model was trained for no longer context."
    )
    assert f"Cut off: the context of {length} tokens is full. {more}" in cut


@pytest.mark.process
def test_an_isolated_engine_says_the_same(base_model):
    with localspec.IsolatedEngine(base_model, num_threads=1) as engine:
        chat = engine.chat(template="chatml")
        assert "trained for no longer" in refused(lambda: chat.send("word " * 90).reply())


def test_a_base_model_is_for_going_on_with_a_text(base_model):
    engine = localspec.load(base_model, num_threads=1)
    with engine, pytest.raises(localspec.TemplateError, match="no chat template") as caught:
        engine.chat()
    assert "engine.generate_raw()" in caught.value.hint
    assert "template=chatml" in caught.value.hint
    told = run("generate", "Once", "--target", base_model)
    assert "goes on with a text: localspec generate --raw" in told.stderr
    assert "as --chat-template chatml" in told.stderr
    done = run("generate", "--raw", "Once", "--target", base_model, "--max-tokens", 2)
    assert done.exit_code == 0


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (LFS, "is a Git LFS pointer of 126 bytes", "git lfs pull"),
        (b"<!doctype html>\n<html></html>", "is a web page", "/resolve/"),
        (b"\xef\xbb\xbf\r\n<HTML><body>Sign in", "is a web page", "/resolve/"),
        (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "is a web page", "/resolve/"),
        (b"", "is empty", "Download it again"),
        (b"PK\x03\x04" + b"\0" * 100, "is not a GGUF file", "converted"),
        (b"<", "is not a GGUF file", "converted"),
    ],
    ids=["lfs", "page", "page with a mark", "xml", "empty", "zip", "short"],
)
def test_what_lies_in_a_models_place_is_called_what_it_is(tmp_path, content, what, hint):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(localspec.ModelFileError) as caught:
        localspec.load(path)
    assert f"{path} {what}" in str(caught.value)
    assert hint in caught.value.hint
    assert run("generate", "Hi", "-m", path).exit_code == 1
    imported = run("models", "import", tmp_path)
    assert f"Skipped: {path} {what}" in imported.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["generate", "Hi", "FILE"], "The model is given by -m FILE."),
        (["generate", "FILE", "Hi"], "The model is given by -m FILE."),
        (["generate", "FILE"], "PROMPT is a model file. The model is given by -m FILE."),
        (["generate", "Hi", "qwen2-7b"], "The model is given by -m qwen2-7b."),
        (["generate", "Hi", "hf:a/b/c.gguf"], "The model is given by -m hf:a/b/c.gguf."),
        (["generate", "Hi", "a/b:Q4_0"], "The model is given by -m a/b:Q4_0."),
        (["generate", "Tell", "me", "more"], "Put a prompt of several words in quotes."),
        (["chat", "demo", "FILE"], "The draft model is given by --draft FILE."),
        (["bench", "demo", "FILE"], "The draft model is given by --draft FILE."),
        (["explain", "demo", "FILE"], "The draft model is given by --draft FILE."),
        (["chat", "demo", "Hi"], "To ask one question: localspec generate -m MODEL PROMPT."),
        (["chat", "-m", "FILE"], "Use: localspec chat MODEL."),
        (["serve", "--model", "FILE"], "Use: localspec serve MODEL."),
        (["serve", "--preset", "demo"], "Use: localspec serve MODEL."),
        (["explain", "--preset=demo"], "Use: localspec explain MODEL."),
        (["doctor", "FILE"], "To look at a model: localspec explain FILE."),
        (["FILE"], "Use: localspec chat FILE."),
        (["models", "FILE"], "Use: localspec explain FILE."),
    ],
)
def test_a_model_in_the_wrong_place_says_where_it_belongs(demo_target, arguments, hint):
    file = str(demo_target)
    result = run(*[argument.replace("FILE", file) for argument in arguments])
    assert result.exit_code == 2
    assert hint.replace("FILE", file) in result.stderr


@pytest.mark.parametrize(
    ("command", "flags", "ours"),
    [
        ("chat", "-c --ctx-size --num-ctx --ctx-size=4096", "--ctx"),
        ("chat", "-n --n-predict --num-predict", "--max-tokens"),
        ("chat", "-t --num-thread", "--threads"),
        ("chat", "-fa", "--flash-attn"),
        ("generate", "-fa", "--flash-attn"),
        ("chat", "-ngl --n-gpu-layers --num-gpu", "--gpu-layers"),
        ("generate", "-md --model-draft", "--draft"),
        ("bench", "--draft-max --draft-n", "--draft-tokens"),
        ("generate", "--temp --temp=0", "--temperature"),
        ("generate", "-p --prompt", "localspec generate PROMPT"),
        ("chat", "-p --prompt", "localspec generate -m MODEL PROMPT"),
        ("generate", "-hf --hf-repo", "-m"),
        ("verify", "-m --model -hf", "localspec verify MODEL"),
        ("download", "-m", "localspec download PRESET"),
        ("chat", "--stream", "no option, since answers are shown as they are written"),
        ("generate", "-i -cnv", "localspec chat"),
        ("serve", "-np", "--parallel"),
        ("explain", "-c", "--ctx"),
        ("codex", "-c", "--ctx"),
    ],
)
def test_an_option_of_another_program_says_what_stands_for_it(command, flags, ours):
    for flag in flags.split():
        result = run(command, flag, "1")
        assert result.exit_code == 2
        assert "No such option '-" in result.stderr
        assert f"Use: {ours}" in result.stderr


def test_short_options_in_a_row_have_no_hint():
    """Of llama.cpp's -ctk, click reads -c, for which ours would be --ctx."""
    assert "Use:" not in run("chat", "-ctk", "q8_0").stderr


def test_what_stands_for_an_option_of_another_program_is_there():
    known = set(flags_of(main))
    assert {ours for ours in THEIRS if ours.startswith("--")} <= known


@pytest.mark.parametrize("words", [["bench", "demo", "more"], ["doctor", "more"], ["xyzzy"]])
def test_a_word_that_is_not_a_model_has_no_hint_about_models(words):
    result = run(*words)
    assert result.exit_code == 2
    assert "model" not in result.stderr
