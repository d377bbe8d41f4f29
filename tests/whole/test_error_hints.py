"""Errors say what is wrong and what to do: arguments in Python, options on the command line."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

import inside
import localspec
from gguf_maker import write_random_model
from localspec.cli import exit_codes, main
from localspec.cli.screen import in_flags
from localspec.errors import LocalspecError, OptionError
from localspec.presets.presets import read_presets
from localspec.presets.user_presets import add_preset
from localspec.streaming.answer_options import AnswerOptions, answer_keywords
from standin_hub import StandinHub


def run(*arguments: object) -> Result:
    """What a command says: never a traceback, and no answer beside an error."""
    result = CliRunner().invoke(main, [str(a) for a in arguments], input="")
    assert "Traceback" not in result.output
    assert result.exit_code == 0 or result.stdout == ""
    return result


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # a model in the wrong place
        ("generate FILE", "PROMPT is a model file. The model is given by -m FILE."),
        ("explain demo FILE", "The draft model is given by --draft FILE."),
        # what other programs call it
        ("chat --ctx-size=4096", "No such option '--ctx-size=4096'. Use: --ctx."),
        ("generate -p Hi", "Use: localspec generate PROMPT."),
        ("chat --stream", "Use: no option, since answers are shown as they are written."),
        ("generate x --num-predict 5", "No such option '--num-predict'. Use: --max-tokens."),
        ("generate x --max-new-tokens=5", "Use: --max-tokens."),
        ("generate x --response-format json", "Use: --json-schema."),
        ("generate x --do-sample", "Use: --temperature 0."),
        ("generate x --images a.png", "Use: --image."),
        ("serve --max-model-len 64", "Use: --ctx."),
        ("run llama3", "No such command 'run'. Use: localspec chat MODEL"),
        ("list", "No such command 'list'. Use: localspec models."),
        ("models rm qwen2-7b", "No such command 'rm'. Use: localspec models remove PRESET."),
        ("models pull qwen2-7b", "Use: localspec download PRESET."),
        # what is near
        ("serve --cach-disk 0", "Did you mean '--cache-disk'?"),
        ("models dfault", "Perhaps default?"),
        ("chat --temprature 1", "'--temperature'"),
        # what there is not
        ("models verify demo nope", "no preset 'nope'"),
        ("generate x --target absent.gguf", "does not exist"),
        ("download FILE", "is on this machine: there is nothing to fetch"),
        # what cannot be
        ("generate", "Give a PROMPT"),
        ("generate x --temperature nan", "nan is not a finite number"),
        ("generate x --mirostat 2", "mirostat cannot be set"),
        ("generate x --ban 'several tokens'", "--ban 'several tokens' is"),
        ("generate x --ctx 99999", "trained for 2048"),
    ],
)
def test_a_wrong_command_line_is_told_with_the_right_one(
    hub: StandinHub, demo_target, line, said
):
    file = str(demo_target)
    result = run(*[word.replace("FILE", file) for word in shlex.split(line)])
    assert result.exit_code == exit_codes.USAGE
    assert said.replace("FILE", file) in result.stderr


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Choose context_length=64 or less.", "Choose --ctx 64 or less."),
        ('On (flash_attention="on") or more (rpc=…).', "On (--flash-attn on) or more (--rpc)."),
        ("Or draft_tokens=0; force=True loads it.", "Or --no-draft; --force loads it."),
        ("the head and its target: a template", "the head and its target: a template"),
    ],
)
def test_commands_say_their_options(said, shown):
    assert in_flags(said) == shown


@pytest.mark.parametrize(("length", "has_more"), [(32, True), (64, False)])
def test_a_longer_context_than_the_training_is_never_the_advice(
    tmp_path, demo_target, length, has_more
):
    """Python and the command line name it each in its own way."""
    path = write_random_model(tmp_path / "m.gguf", demo_target, context_length=64)
    long = "word " * 100
    engine = localspec.load(path, context_length=length, num_threads=1)
    with engine, pytest.raises(localspec.ContextError) as caught:
        engine.generate_raw(long).reply()
    assert ("up to 64 tokens (context_length=…)" in caught.value.hint) is has_more
    options = ["--raw", "--target", path, "--ctx", length]
    assert ("up to 64 tokens (--ctx)" in run("generate", long, *options).stderr) is has_more
    cut = run("generate", "a", *options, "--ignore-eos").stderr
    assert f"Cut off: the context of {length} tokens is full." in cut
    assert ("For more: --ctx, up to 64." in cut) is has_more


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer", "lfs pull"),
        (b"\xef\xbb\xbf\r\n<HTML><body>Sign in", "is a web page", "/resolve/"),
        (b"", "is empty", "Download it again"),
        (b"PK\x03\x04" + b"\0" * 100, "is not a GGUF file", "converted"),
    ],
    ids=["lfs", "page", "empty", "zip"],
)
def test_what_lies_in_a_models_place_is_called_what_it_is(tmp_path, content, what, hint):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(localspec.ModelFileError) as caught:
        localspec.load(path)
    assert f"{path} {what}" in str(caught.value)
    assert hint in caught.value.hint
    assert run("generate", "Hi", "-m", path).exit_code == exit_codes.FAILED
    assert f"Skipped: {path} {what}" in run("models", "import", tmp_path).stderr


@pytest.mark.parametrize(
    "name", [3, "x" * 5000, "\0", "\ud800", "hf:o/m/x-00005-of-00003.gguf"],
    ids=lambda name: repr(name)[:12],
)  # fmt: skip
@pytest.mark.parametrize(
    "call",
    [
        localspec.download,
        localspec.load,
        lambda name: localspec.load(target="demo", draft=name),
        lambda name: localspec.explain(target=name),
        lambda name: add_preset("x", {"target": name}, description="d", context_length=8),
    ],
    ids=["download", "load", "draft", "explain", "add"],
)
def test_what_is_no_name_is_told_with_a_hint(hub: StandinHub, call, name):
    with pytest.raises(LocalspecError) as caught:
        call(name)
    assert caught.value.hint


def answers(**wrong: object) -> None:
    """Ask in each of the ways that take options of an answer."""
    with localspec.load(draft_tokens=0, num_threads=1) as engine:
        messages, chat = [{"role": "user", "content": "Hi"}], engine.chat()
        asks = (engine.generate_raw, engine.generate, chat.send, chat.edit)
        for ask in asks[1:]:
            with pytest.raises(localspec.UnknownKeywordError):
                ask(messages if ask is engine.generate else "x", **wrong)
        assert not chat.messages
        asks[0]("x", **wrong)


def preset(**wrong: object) -> None:
    """Read a preset of these keys."""
    lines = "\n".join(f"{key} = {value}" for key, value in wrong.items())
    known = {"demo": localspec.find_preset("demo")}
    read_presets("mine", f'[a]\nextends = "demo"\n{lines}\n', known)


@pytest.mark.parametrize(
    ("ask", "wrong", "hint"),
    [
        (localspec.load, "model_path", "Give the model first"),
        (localspec.load, "temperature", "Write engine.generate(…, temperature=…)."),
        (localspec.load, "num_predict", "Write engine.generate(…, max_tokens=…)."),
        (localspec.load, "flash_attn", "LlamaOptions(…, flash_attention=…)."),
        (localspec.load, "verbose", 'The logger "localspec"'),
        (
            localspec.load,
            "zzz",
            "Known options: draft, context_length, num_threads, num_gpu_layers",
        ),
        (localspec.IsolatedEngine, "n_ctx", "It is context_length here."),
        (localspec.explain, "ctx", "It is context_length here."),
        (localspec.SamplingParams, "repeat_penalty", "It is repetition_penalty here."),
        (localspec.SamplingParams, "max_tokens", "Write engine.generate(…, max_tokens=…)."),
        (localspec.AnswerOptions, "max_new_tokens", "It is max_tokens here."),
        (localspec.LlamaOptions, "type_k", "It is cache_type_k here."),
        (answers, "temprature", "Perhaps temperature?"),
        (answers, "num_predict", "It is max_tokens here."),
        (answers, "num_ctx", "Write localspec.load(…, context_length=…)."),
        (answers, "response_format", "It is json_schema here. It takes a JSON schema"),
        (answers, "functions", "It is tools here."),
        (answers, "stream", "Iterate over the answer"),
        (answers, "do_sample", "It is temperature here. temperature=0 is greedy"),
        (answers, "n", "Ask once for each answer"),
        (answers, "keep_alive", "until engine.close()"),
        (answers, "messages", "engine.generate(messages)"),
        (preset, "contxt_length", "Perhaps context_length?"),
        (preset, "n_ctx", "Perhaps context_length?"),
    ],
)
def test_an_unknown_keyword_is_told_with_the_one_that_may_be_meant(ask, wrong, hint):
    """Then come the keywords that there are, the most usual of many, and none of them twice."""
    with pytest.raises(LocalspecError) as caught:
        ask(**{wrong: 1})
    assert wrong in str(caught.value)
    assert hint in caught.value.hint
    assert isinstance(caught.value, TypeError) == (ask is not preset)
    assert len(caught.value.hint) < 240
    listed = (
        caught.value.hint.partition("Known options: ")[2].partition(", and ")[0].split(", ")
    )
    assert len(set(listed)) == len(listed) <= 9


def test_a_sampler_that_has_no_distribution_is_told_why(engine):
    with pytest.raises(localspec.OptionError, match="mirostat steers by what was drawn before"):
        engine.generate("Hi", mirostat=2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda engine: engine.chat("Hi"), 'engine.chat().send("Hi")'),
        (lambda engine: engine.chat().send(), 'chat.send("Hi")'),
        (lambda engine: engine.generate(), 'engine.generate("Hi")'),
        (lambda engine: engine.generate(messages=[]), "engine.generate(messages)"),
        (lambda engine: engine.generate(prompt="Hi"), 'engine.generate("Hi")'),
        (lambda engine: type(engine)("demo"), 'localspec.load("demo")'),
        (lambda engine: type(engine)(target="demo"), 'localspec.load("demo")'),
    ],
)
def test_a_wrong_call_is_told_with_the_right_one(engine, call, said):
    with pytest.raises(TypeError) as caught:
        call(engine)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (lambda engine: engine.generate("Hi"), "text", "answer.reply().text"),
        (lambda engine: engine.generate("Hi"), "choices", "answer.reply().text"),
        (lambda engine: engine.generate("Hi"), "stats", "answer.reply().stats"),
        (lambda engine: engine, "create_chat_completion", "engine.generate(messages)"),
        (lambda engine: engine, "complete", 'engine.generate("Hi")'),
        (lambda engine: engine.chat(), "ask", 'chat.send("Hi")'),
        (lambda engine: engine.chat(), "history", "chat.messages"),
        (lambda _engine: localspec, "Llama", 'localspec.load("model.gguf")'),
        (lambda _engine: localspec, "pull", "localspec.download("),
    ],
)
def test_a_name_of_another_library_is_told_with_ours(engine, owner, name, instead):
    """As an AttributeError: whoever looks whether it is there finds that it is not."""
    found = owner(engine)
    assert not hasattr(found, name)
    assert getattr(found, name, 3) == 3
    with pytest.raises(AttributeError, match=re.escape(f"Write {instead}")):
        getattr(found, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = found.nothing
    copy.copy(engine.chat())  # which looks for names of its own


@pytest.mark.process
@pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks have no notes")
def test_a_traceback_shows_the_hint(tmp_path):
    code = "import localspec; localspec.SamplingParams(temp=1)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert "unknown option 'temp'\nIt is temperature here." in done.stderr


def test_the_table_of_other_names_leads_to_keywords_that_there_are():
    calls = (localspec.load, localspec.LlamaOptions, localspec.Engine.chat)
    known = {name for call in calls for name in inspect.signature(call).parameters}
    known |= set(answer_keywords())
    rows = inside.foreign_rows()
    assert {row.keyword for row in rows} - known == {""}
    theirs = [name for row in rows for name in row.foreign_names]
    assert len(set(theirs)) == len(theirs)
    # What both have means the same, or is no keyword of the same calls.
    assert set(theirs) & set(answer_keywords()) == set()


def error_classes(
    base: type[LocalspecError] = LocalspecError,
) -> Iterator[type[LocalspecError]]:
    """The base and all that derive from it, in any module."""
    yield base
    for derived in base.__subclasses__():
        yield from error_classes(derived)


for _module in pkgutil.walk_packages(localspec.__path__, "localspec."):
    if ".__" not in _module.name:  # what Python and PyInstaller run
        importlib.import_module(_module.name)


@pytest.mark.parametrize("cls", sorted(set(error_classes()), key=lambda cls: cls.__qualname__))
@pytest.mark.parametrize(
    "again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
def test_no_error_loses_what_it_says_on_its_way_to_another_process(cls, again):
    """Message, hint and what a subclass adds; also what was set or noted later."""
    values = {name: f"the {name}" for name in inspect.signature(cls).parameters}
    error = cls(**values)
    error.hint = "what to do"
    error.__notes__ = ["seen in a test"]
    found = again(error)
    assert (type(found), str(found), found.args) == (cls, "the message", error.args)
    assert vars(found) == vars(error)
    for name in values.keys() - {"message", "hint"}:
        assert f"the {name}" in vars(found).values()


def test_an_option_that_is_not_near_is_not_suggested():
    assert "Did you mean" not in run("chat", "--modle", "x").output


@pytest.mark.parametrize(
    "use",
    [
        lambda: localspec.load(context_length=True),
        lambda: localspec.load(parallel=True),
        lambda: localspec.load(kept_bytes=True),
        lambda: localspec.load(draft_tokens=True),
        lambda: AnswerOptions.of(draft_tokens=True),
        lambda: AnswerOptions.of(max_tokens=True),
    ],
)
def test_true_is_no_number(use):
    with pytest.raises(OptionError, match="is True"):
        use()
