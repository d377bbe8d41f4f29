"""What trimming saves: the script measures tiny files, and no time is judged."""

from __future__ import annotations

import argparse
import json
import re

import measure_trimmed
import numpy as np

from localspec.engine.trimming import trim
from shape_pair.bigrams import TextSpec
from shape_pair.pair import HeadSpec, make_with_head

TEXT = TextSpec(entropy=1.0, agreement=(0.8,), segment=64, period=None, seed=1)


def test_a_head(tmp_path, capsys):
    spec = HeadSpec("tiny-qwen35", "Q4_0", TEXT, is_apart=False)
    target = make_with_head(spec, tmp_path)[0]
    trim(target, num_tokens=1000)
    measure_trimmed.head(argparse.Namespace(target=target, rounds=2, threads=1))
    assert "a drafted token, trimmed ÷ whole, K 3: **" in capsys.readouterr().out


def test_a_draft(tmp_path, capsys, demo_target, demo_draft):
    made = trim(demo_draft, num_tokens=1000, out=tmp_path / "some.gguf")
    with (tmp_path / "humaneval.jsonl").open("w") as file:
        for prompt in ("Tell me a story about a fox.", "Once there was a river"):
            file.write(json.dumps({"prompt": prompt}) + "\n")
    asked = argparse.Namespace(
        target=demo_target, whole=demo_draft, trimmed=made.path, rounds=2, threads=1,
        prompts=tmp_path, questions=2, tokens=12,
    )  # fmt: skip
    measure_trimmed.draft(asked)
    printed = capsys.readouterr().out
    assert f"a token of some.gguf ÷ of {demo_draft.name}" in printed
    found = re.findall(r"likeliest ([\d.]+), at temperature 1 ([\d.]+)", printed)
    whole, some, with_text = (float(drawn) for _, drawn in found)
    assert 0 < some <= with_text <= whole <= 1


def test_the_laws_with_the_tokens_of_the_text():
    q = np.array([[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]])
    found = measure_trimmed.of_text(q, [1, 1, 3, 0], [0])
    np.testing.assert_allclose(found, [[1 / 3, 2 / 3, 0, 0], [1 / 7, 2 / 7, 0, 4 / 7]])
