"""What could draft on this machine for a model that has no draft."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from adapter_maker import write_adapter
from command_line import run
from gguf_maker import split_model, write_random_model, write_spm_model
from head_maker import write_head_model
from localspec.advice import explanation
from localspec.advice.explanation import explain

pytestmark = pytest.mark.usefixtures("own_config")


def proposed(folder):
    """The model that could draft for that model, as `explain` says in JSON."""
    return json.loads(run("explain", folder / "large.gguf", "--json").stdout)["draft_here"]


def test_a_draft_that_is_here_is_proposed_if_it_has_the_tokenizer_and_is_small(
    tmp_path, demo_target
):
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    assert proposed(tmp_path) is None  # the demo's draft knows its own topics only
    write_spm_model(tmp_path / "other.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert proposed(tmp_path) is None
    write_random_model(tmp_path / "middle.gguf", demo_target, width=192)
    assert proposed(tmp_path) is None
    same = write_random_model(tmp_path / "same.gguf", demo_target, width=64)
    assert proposed(tmp_path) == str(same)


def test_a_split_model_is_as_large_as_its_parts_together(tmp_path, demo_target):
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    middle = write_random_model(tmp_path / "middle", demo_target, width=192)
    first = split_model(middle, tmp_path, in_first=("output_norm.weight",))
    num_bytes = middle.stat().st_size
    middle.unlink()
    small = write_random_model(tmp_path / "small.gguf", demo_target, width=64)
    assert first.stat().st_size < small.stat().st_size < num_bytes
    assert proposed(tmp_path) == str(small)


def test_a_link_to_itself_is_no_draft(tmp_path, demo_target):
    write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    assert proposed(tmp_path) is None


def explained(*arguments) -> tuple[list[str], list[str]]:
    """The lines on the draft, and those with commands, by which the explanation ends."""
    lines = [" ".join(line.split()) for line in run("explain", *arguments).stdout.splitlines()]
    titles = [line.split()[0] for line in lines]
    about_draft = lines[titles.index("Draft") : titles.index("Device")]
    return about_draft, [line for line in lines if line.startswith("To ")]


def test_the_last_line_is_the_pair_to_type(tmp_path, demo_target):
    large = write_random_model(tmp_path / "large.gguf", demo_target, width=256)
    (_, why), commands = explained(large)
    assert why.startswith("no smaller model here has its tokenizer")
    assert commands == [f"To chat localspec chat {large}"]

    middle = write_random_model(tmp_path / "middle.gguf", demo_target, width=192)
    (_, why), commands = explained(large, "--ctx", 512)
    assert re.match(r"middle\.gguf has its tokenizer and \d\d% of its size, above a third", why)
    assert commands == [
        f"To chat localspec chat {large} --ctx 512",
        f"To measure localspec bench {large} --ctx 512 --draft {middle}",
    ]
    adapter = write_adapter(tmp_path / "adapter.gguf", large)
    _, commands = explained(large, "--lora", adapter)
    assert commands == [
        f"To chat localspec chat {large} --lora {adapter}=1",
        f"To measure localspec bench {large} --lora {adapter}=1 --draft {middle}",
    ]

    small = write_random_model(tmp_path / "small one.gguf", demo_target, width=64)
    (_, why), commands = explained("--target", large)
    assert why.startswith("small one.gguf could draft")
    assert commands == [f"To chat localspec chat --target {large} --draft '{small}'"]
    lines = run("explain", large, "--draft", small).stdout.splitlines()
    assert lines[-1].split(maxsplit=2)[2] == f"localspec chat {large} --draft '{small}'"


def test_a_pair_that_does_not_fit_is_named_with_the_context_that_would(
    tmp_path, demo_target, monkeypatch
):
    large = write_random_model(
        tmp_path / "large.gguf", demo_target, width=256, num_layers=8, context_length=1 << 20
    )
    found = explain(target=large)
    room = replace(found.room, main_bytes=found.memory.main_bytes * 3 // 2)
    monkeypatch.setattr(explanation, "free_memory", lambda _servers: room)
    fitting = explain(target=large, context_length=1 << 20).largest_context
    assert 8192 < fitting < 1 << 20
    _, commands = explained(large, "--ctx", 1 << 20)
    assert commands == [f"To chat localspec chat {large} --ctx {fitting}"]


def test_a_model_with_a_head_or_a_draft_gets_no_proposal(tmp_path, demo_target):
    whole = write_head_model(tmp_path / "whole.gguf", demo_target, "glm4moe")
    trunk = write_head_model(tmp_path / "trunk.gguf", demo_target, "glm4moe", part="trunk")
    draft = write_random_model(tmp_path / "same.gguf", demo_target, width=8)
    assert explain(target=trunk).draft_here == draft
    assert explain(target=whole).draft_here is None
    assert explain(target=trunk, draft=draft).draft_here is None
