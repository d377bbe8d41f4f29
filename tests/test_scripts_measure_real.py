"""The measurement on real text: real engines that share weights, published sets, tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from other_tokenizer import write_renumbered

import inside
import localspec
import measure_real
from localspec.checks.prompts import built_in_tasks
from localspec.errors import OptionError
from real_text.questions import questions_of
from real_text.record import Figure, Record, read_record, report
from real_text.servers import SERVER, SERVERS, Files, LlamaServer
from real_text.sides import (
    PLAIN,
    WITH_DRAFT,
    WITHOUT_DRAFT,
    Sides,
    Weights,
    draft_options,
    target_options,
)

SCRIPT = Path(measure_real.__file__)
# A prompt that is longer than what each side reads of it by itself.
CHAT = next(task for task in built_in_tasks() if task.kind == "chat")


@pytest.fixture
def files(tmp_path, demo_target, demo_draft) -> Path:
    """A folder with the demo pair, and one with the beginnings of the published sets."""
    for name, path in {"target.gguf": demo_target, "draft.gguf": demo_draft}.items():
        (tmp_path / name).symlink_to(path)
    sets = tmp_path / "sets"
    sets.mkdir()
    lines = {
        "humaneval": [{"prompt": f"def f{n}():\n"} for n in range(3)],
        "mt-bench": [{"turns": ["Tell me a story.", "And then?"]}],
        "gsm8k-test": [{"question": "What is 2 plus 2?"}],
    }
    for name, content in lines.items():
        (sets / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    return tmp_path


@pytest.fixture
def sides(demo_target, demo_draft):
    options = target_options(512, 1)
    target, draft = Weights(demo_target, options), Weights(demo_draft, draft_options(options))
    sides = Sides(target, draft, [*WITHOUT_DRAFT, *WITH_DRAFT])
    yield sides
    sides.close()
    draft.close()
    target.close()


def test_sides_on_shared_weights_answer_as_engines_of_their_own(sides, demo_target, demo_draft):
    """Also where the prompt was read for all of them at once, and after other answers."""
    asked = {"max_tokens": 24, "temperature": 0.0}
    with localspec.load(demo_target, draft=demo_draft, num_threads=1) as engine:
        alone = {
            count: CHAT.ask(engine, **asked, draft_tokens=count, proposer="draft").reply()
            for count in (1, 2, 3, 4)
        }
    for _ in range(2):
        found = sides.answer(CHAT, sides.names, **asked)
        assert list(found) == list(sides.names)
        for name, each in found.items():
            assert each.token_ids == alone[1].token_ids, name
            assert sides.are_same(each, found[PLAIN])
            assert each.tokens_per_s is not None
        assert not any(found[PLAIN].drafted)
        for count, reply in alone.items():
            each = found[f"draft-{count}"]
            assert each.drafted == reply.stats.drafted_per_position
            assert each.accepted == reply.stats.accepted_per_position


def test_sides_know_nothing_or_what_three_answers_taught(sides):
    sides.learn()
    fresh = sides.policy("pair").as_dict()
    learned = sides.policy("pair-known").as_dict()
    assert learned != fresh
    code = next(task for task in built_in_tasks() if task.kind == "code")
    sides.answer(code, ["pair", "pair-known"], max_tokens=64, temperature=0.0)
    after = inside.loop(sides.engines["pair"]).draft_policy.as_dict()
    assert after != fresh  # it has learned, which the next answer begins without
    assert sides.policy("pair").as_dict() == fresh
    assert sides.policy("pair-known").as_dict() == learned


def test_published_sets_take_the_place_of_built_in_tasks(files):
    code = questions_of("code", files / "sets", most=2)
    assert [question.name for question in code] == ["HumanEval 0", "HumanEval 1"]
    assert code[1].task.text.endswith("```python\ndef f1():\n```")
    (chat,) = questions_of("chat", files / "sets", most=9)
    second = chat.after("Once upon a time.")
    assert second is not None
    said = [(message["role"], message["content"]) for message in second.task.messages]
    assert said[1:] == [("assistant", "Once upon a time."), ("user", "And then?")]
    assert second.after("The end.") is None
    for folder in (files / "sets", None):
        edits = questions_of("edit", folder, most=2)
        assert [edit.task.kind for edit in edits] == ["edit", "edit"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", "no JSON", '{"prompt": 1'])
def test_a_file_that_is_no_such_set_is_refused(tmp_path, content):
    (tmp_path / "humaneval.jsonl").write_text(content)
    with pytest.raises(OptionError, match=r"humaneval\.jsonl is no HumanEval"):
        questions_of("code", tmp_path, most=2)


def figure(side: str, question: str, ratio: float | None, **values: object) -> Figure:
    usual = {"kind": "code", "temperature": 0.0, "num_tokens": 9, "is_same": True}
    counts = {"drafted": (4, 2), "accepted": (3, 1)}
    rate = None if ratio is None else 20 * ratio
    return Figure(
        **{**usual, **counts, **values},
        side=side,
        question=question,
        tokens_per_s=rate,
        ratio=ratio,
    )


def test_the_tables_hold_medians_and_what_is_put_beside_what(tmp_path):
    none = {"drafted": (0,), "accepted": (0,)}
    record = Record({"machine": "one"})
    for number, ours in enumerate((1.2, 1.5, 1.8)):
        question = f"code {number}"
        record.figures += [
            figure(PLAIN, question, 1.0, **none),
            figure("automatic", question, ours, is_same=number > 0),
            figure("llama-server-ngram-mod", question, 1.0, **none),
            figure("llama-server-ngram-cache", question, 1.2),
        ]
    record.figures.append(figure("automatic", "chat 1", None, kind="chat", **none))
    record.write(tmp_path / "record.json")
    lines = report([read_record(tmp_path / "record.json")]).splitlines()
    assert lines[0] == "- machine: one"
    for line in (
        "| side | code (3) | chat (1) |",
        "| plain | 20.0 tokens/s | - |",
        "| automatic | **1.50** (1.20 … 1.80) | - |",
        "| automatic ÷ llama-server's best lookup "
        "| **1.25** (1.00 … 1.50) llama-server-ngram-cache | - |",
        "| automatic | 75 50 |",
        "| automatic | 2 of 3 | 1 of 1 |",
    ):
        assert line in lines
    assert not any(line.startswith("| pair") for line in lines)
    (tmp_path / "record.json").write_text('{"facts": {}}')
    with pytest.raises(OptionError, match="holds no figures"):
        read_record(tmp_path / "record.json")


def run(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_it_prints_tables_of_what_it_asked(files):
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    models = [files, "--target", "target.gguf", "--draft", "draft.gguf", "--ctx", 512]
    few = ["--tokens", 12, "--prompts-per-kind", 1, "--threads", 1, "--prompts", files / "sets"]
    done = run(
        *(*models, *few, "--only", "code", "chat", "json", "tool"),
        *("--sides", "automatic", "draft-[12]", "--write", files / "record.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "tool 1 is left out: this model calls no tools" in done.stderr
    assert "| side | code (1) | chat (2) | json (1) |" in done.stdout
    again = run("--read", files / "record.json")
    assert again.stdout == done.stdout
    record = read_record(files / "record.json")
    assert len(record.figures) == 4 * 4 * 2  # sides, questions, temperatures
    assert all(each.is_same for each in record.figures if each.temperature == 0.0)
    assert "MT-bench 0, second turn" in {each.question for each in record.figures}
    assert any(name.startswith("sha256 of draft.gguf") for name in record.facts)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no folder of models"),
        (("--sides", "autmatic"), "no side is called autmatic"),
        (("--sides", "llama-server"), "llama-server needs"),
        (("--draft", "", "--sides", "pair"), "pair needs a draft model"),
        (("--target", "other.gguf"), "other.gguf"),
        (("--minutes", "0"), "nothing was measured"),
    ],
)
def test_what_cannot_be_measured_is_said_with_a_hint(files, options, said):
    named = ["--target", "target.gguf", "--draft", "draft.gguf", "--ctx", 512]
    done = run(*([files, *named] if options else []), *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_a_draft_with_another_tokenizer_is_refused_at_once(files, demo_draft):
    write_renumbered(files / "other.gguf", demo_draft)
    done = run(files, "--target", "target.gguf", "--draft", "other.gguf", "--sides", "pair")
    assert done.returncode == 1
    assert "other.gguf has another tokenizer than target.gguf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("name", SERVERS)
def test_llama_server_answers_the_same_tokens(name, demo_target, demo_draft):
    program = shutil.which(SERVER)
    if program is None:
        pytest.skip("llama-server is not installed")
    options = target_options(512, 1)
    target = Weights(demo_target, options)
    sides = Sides(target, None, [PLAIN])
    files = Files(Path(program), demo_target, demo_draft, 512, 1)
    asked = {"max_tokens": 24, "temperature": 0.0}
    with LlamaServer(name, files) as server:
        theirs = server.answer(sides.prompt(CHAT), CHAT, **asked)
        sampled = server.answer(sides.prompt(CHAT), CHAT, max_tokens=24, temperature=0.8)
    ours = sides.answer(CHAT, [PLAIN], **asked)[PLAIN]
    sides.close()
    target.close()
    assert theirs.token_ids[:4] == ours.token_ids[:4]
    assert 1 <= len(sampled.token_ids) <= 24
    assert theirs.tokens_per_s is not None
    assert bool(theirs.drafted[0]) == ("draft" in name) or "ngram" in name
