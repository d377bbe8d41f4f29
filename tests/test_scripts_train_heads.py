"""Training heads: what goes on after an interruption, and for which targets there are none."""

from __future__ import annotations

import importlib
import re
import shutil
import signal

import pytest
from own_texts import Text, held_out, read_questions
from target_file import layers_of, require_layers

import localspec
from gguf_maker import write_random_model

OPTIONS = (
    *("--tokens", "400", "--answer-tokens", "24", "--steps", "4", "--between", "2"),
    *("--batch", "2", "--threads", "1"),
)


def train(script, target, out, monkeypatch):
    arguments = ["train", "--target", str(target), "--out", str(out), *OPTIONS]
    monkeypatch.setattr("sys.argv", arguments)
    script.main()


def interrupted_by(loss_of):
    """A loss like that one, at whose third time Ctrl-C is pressed."""
    losses = []

    def loss(*arguments):
        losses.append(loss_of(*arguments))
        if len(losses) == 3:
            signal.raise_signal(signal.SIGINT)
        return losses[-1]

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_eagle", "train_medusa"])
def test_interrupted_training_goes_on_to_the_same_head(
    name, demo_target, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("torch")
    script = importlib.import_module(name)
    whole, parts = tmp_path / "whole" / "head.gguf", tmp_path / "parts" / "head.gguf"
    train(script, demo_target, whole, monkeypatch)
    report = capsys.readouterr().out
    assert re.findall("^step ([0-9]+)", report, re.MULTILINE) == ["0", "2", "4"]
    # The same texts, behind which one was not written to its end.
    work = shutil.copytree(whole.with_suffix(".work"), parts.with_suffix(".work"))
    for kept in work.glob("*.pt"):
        kept.unlink()
    with (work / "texts.jsonl").open("a") as texts:
        texts.write("[77, 0.0, 5, [1, 2")
    with monkeypatch.context() as patch:
        patch.setattr(script, "loss_of", interrupted_by(script.loss_of))
        with pytest.raises(SystemExit) as ended:
            train(script, demo_target, parts, patch)
    assert ended.value.code == 130
    assert "The same command goes on" in capsys.readouterr().err
    assert not parts.exists()
    train(script, demo_target, parts, monkeypatch)
    report = capsys.readouterr().out
    assert "going on at step 3" in report
    assert re.findall("^step ([0-9]+)", report, re.MULTILINE) == ["4"]
    assert parts.read_bytes() == whole.read_bytes()
    with localspec.load(
        target=demo_target, head=parts, proposer="head", draft_tokens=2
    ) as engine:
        reply = engine.generate_raw("Once", max_tokens=8).reply()
        assert reply.stats.num_draft_tokens > 0


def test_a_target_whose_layers_are_not_given_gets_no_eagle_head(demo_target, tmp_path):
    other = write_random_model(tmp_path / "qwen2.gguf", demo_target, architecture="qwen2")
    assert layers_of(demo_target)
    require_layers(demo_target)
    with pytest.raises(localspec.ModelFileError, match="'qwen2': libllama gives") as told:
        require_layers(other)
    assert "train_medusa.py" in told.value.hint


def test_prompts_are_lines_or_lines_of_json(tmp_path):
    plain, json_lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("one\n\ntwo\n")
    json_lines.write_text(
        '"three"\n{"question": "four\\nlines"}\n{"turns": ["five", "not asked"]}\n'
    )
    assert read_questions([plain, json_lines]) == ["one", "two", "three", "four\nlines", "five"]
    json_lines.write_text('{"text": "?"}\n')
    with pytest.raises(localspec.OptionError, match=r"line 1 of .* has no prompt"):
        read_questions([json_lines])


def test_a_tenth_of_the_prompts_is_held_out():
    texts = [Text(number, 0.8 * (number % 2), 1, [1, 2]) for number in range(40)]
    learned, apart = held_out(texts, 20)
    assert [text.number for text in apart] == [8, 18, 28, 38]
    assert {text.number for text in learned} == set(range(40)) - {8, 18, 28, 38}
    with pytest.raises(localspec.OptionError, match="5 texts of 20 prompts are too few"):
        held_out(texts[:5], 20)
