"""What Tab brings in a shell: names of presets, sessions, files, rules; and quickly."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from command_line import LOCALSPEC
from localspec.cli import main
from localspec.presets.presets import load_presets
from standin_hub import StandinHub


def completed(*words: str) -> list[tuple[str, str]]:
    """What stands for the last of the words: pairs of a kind (plain, file) and a text."""
    done = CliRunner().invoke(
        main,
        env={
            "_LOCALSPEC_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["localspec", *words]),
            "COMP_CWORD": str(len(words)),
        },
        prog_name="localspec",
    )
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    return [(kind, value) for kind, _, value in (line.partition(",") for line in lines)]


def names(*words: str) -> list[str]:
    return [value for kind, value in completed(*words) if kind == "plain"]


@pytest.mark.parametrize(
    "words",
    [("chat", "--preset"), ("download",), ("chat",), ("bench", "--draft")],
    ids=" ".join,
)
def test_presets_those_on_this_machine_first(hub: StandinHub, words, tmp_path, demo_target):
    presets = tmp_path / "config/localspec/models.toml"
    mine = f'[zz]\ndescription = "d"\ncontext_length = 5\n[zz.target]\npath = "{demo_target}"\n'
    presets.write_text(presets.read_text() + mine)
    assert names(*words, "")[:3] == ["demo", "demo@head", "zz"]
    assert names(*words, "") != list(load_presets())
    assert sorted(names(*words, "")) == sorted(load_presets())
    assert names(*words, "z") == ["zz"]
    assert names(*words, "nothing begins so") == []


@pytest.mark.parametrize("words", [("serve",), ("chat", "--grammar")], ids=" ".join)
def test_files_are_left_to_the_shell(words):
    assert completed(*words, "no")[0] == ("file", "no")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("chat", "--rule", ""), ["greedy", "token", "block", "coupled"]),
        (("chat", "--chat-template", "g"), ["gemma"]),
        (("chat", "--cache-type-k", "q8"), ["q8_0"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("models", "pa"), ["path"]),
        (("chat", "--top-"), ["--top-k", "--top-p", "--top-n-sigma"]),
    ],
    ids=str,
)
def test_values_commands_and_options(words, expected):
    assert names(*words) == expected


@pytest.mark.parametrize("words", [("chat", "--session"), ("sessions", "export")], ids=" ".join)
def test_sessions(tmp_path, monkeypatch, words):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert names(*words, "") == []
    folder = tmp_path / "localspec" / "sessions"
    folder.mkdir(parents=True)
    for name in ("french", "work", "french-2", "my 日本語", "l'été"):
        (folder / f"{name}.json").write_text("{}")
    assert names(*words, "fr") == ["french", "french-2"]
    assert [shlex.split(each) for each in names(*words, "")][1:4] == [
        ["french-2"], ["l'été"], ["my 日本語"],
    ]  # fmt: skip


def test_a_broken_file_of_presets_breaks_no_line(hub: StandinHub, tmp_path):
    (tmp_path / "config/localspec/models.toml").write_text("[oops")
    completed("chat", "--preset", "")


@pytest.mark.process
@pytest.mark.parametrize("words", ["", "chat --session ", "generate --target q"])
def test_completing_loads_no_library_of_models(words):
    """In a process of its own, as a shell does it."""
    code = (
        "import sys, atexit; sys.argv[0] = 'localspec';"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
        "from localspec.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "_LOCALSPEC_COMPLETE": "bash_complete",
            "COMP_WORDS": f"localspec {words}",
            "COMP_CWORD": str(len(f"localspec {words}".split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    loaded = set(done.stderr.split())
    assert "localspec.cli.commands.chat_command" in loaded
    slow = {"llama_cpp", "numpy", "gguf", "requests", "rich", "prompt_toolkit"}
    assert not slow & loaded


TYPED = """
    eval "$(localspec completion bash)"
    COMP_WORDS=(localspec chat --preset dem) COMP_CWORD=3 COMPREPLY=()
    _localspec_completion localspec dem --preset
    printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="click completes in Unix shells")
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_a_real_shell():
    done = subprocess.run(
        ["bash", "-c", TYPED],
        env={**os.environ, "PATH": f"{LOCALSPEC.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout.split()
