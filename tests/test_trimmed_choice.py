"""Which of a whole and a trimmed file drafts: the one that was measured to pay more."""

from __future__ import annotations

import argparse
import inspect
import shutil
from collections import Counter

import pytest
from click.testing import CliRunner
from head_maker import write_head_model
from trimmed_files import trimmed_file

import inside
import localspec
from localspec.cli import main
from localspec.engine.trimming import trim
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.trimmed import proposed_ids
from localspec.llama.options import LlamaOptions

FEW = [*range(600)]
ONE_THREAD = {"num_threads": 1, "memory": False}


@pytest.fixture
def files(tmp_path, own_folders, demo_target, demo_draft):
    """A draft of its own folder, and a trimmed one beside it."""
    draft = shutil.copyfile(demo_draft, tmp_path / "draft.gguf")
    return {"target": demo_target, "draft": draft}, trimmed_file(draft, FEW)


def used(files, **keywords):
    """The names of what drafts."""
    with localspec.load(**files, **ONE_THREAD, **keywords) as engine:
        models = inside.models(engine)
        return [model.name for model in (models.draft, models.head) if model is not None]


def said_by_explain(files):
    words = [word for role, path in files.items() for word in (f"--{role}", str(path))]
    lines = CliRunner().invoke(main, ["explain", *words]).stdout.splitlines()
    return next((line for line in lines if line.startswith("Trimmed")), "")


def measure(files, *, draft_s, outcome, **keywords):
    """Let the pair have run here: a target's decode takes 0.1 s."""
    with localspec.load(**files, **ONE_THREAD, **keywords) as engine:
        with engine.exclusively() as loop:
            policy = loop.draft_policy
            drafter = policy.prospects[0]
            for size in (1, 2, 3, 4, 5, 6):
                policy.target_cost.learn(size, 0, 0.1)
                drafter.cost.learn(1, 1, draft_s, 0.1)
            for _ in range(200):
                drafter.acceptance.learn(0.9, outcome)
        inside.save_profile(engine)


def test_without_measurements_what_a_token_reads_decides(files):
    pair, trimmed = files
    assert used(pair) == [trimmed.name]
    assert "draft-trimmed.gguf is used: a drafted token reads" in said_by_explain(pair)
    assert used(pair, trimmed=False) == ["draft.gguf"]
    num_all = len(check_model_file(pair["draft"]).tokens)
    trimmed_file(pair["draft"], range(num_all - 9))
    assert used(pair) == ["draft.gguf"]
    assert "draft-trimmed.gguf is not used: a drafted token reads" in said_by_explain(pair)


@pytest.mark.parametrize(
    ("of_whole", "of_trimmed", "is_used"),
    [
        ({"draft_s": 0.02, "outcome": 1.0}, {"draft_s": 0.01, "outcome": 1.0}, True),
        ({"draft_s": 0.02, "outcome": 1.0}, {"draft_s": 0.018, "outcome": 0.5}, False),
    ],
    ids=["cheaper", "accepted less often"],
)
def test_what_was_measured_decides(files, of_whole, of_trimmed, is_used):
    pair, trimmed = files
    measure(pair, **of_trimmed)
    said = "is not used: it was measured here, and now the whole one is to be"
    assert said in said_by_explain(pair)
    assert used(pair) == ["draft.gguf"]
    measure(pair, **of_whole)
    assert used(pair) == [trimmed.name if is_used else "draft.gguf"]
    said = said_by_explain(pair)
    assert f"is {'' if is_used else 'not '}used: measured here" in said


def test_where_only_the_whole_one_was_measured_the_trimmed_one_is_tried(files):
    pair, trimmed = files
    num_all = len(check_model_file(pair["draft"]).tokens)
    trimmed_file(pair["draft"], range(num_all - 9))
    measure(pair, draft_s=0.02, outcome=1.0)
    assert used(pair) == [trimmed.name]
    assert "is used: the whole one was measured here" in said_by_explain(pair)


def test_the_costs_of_a_heads_trimmed_output_are_its_own(tmp_path, own_folders, demo_target):
    """Though whole and trimmed are in the same file of the target."""
    options = LlamaOptions(context_length=128, flash_attention="off")
    target = write_head_model(tmp_path / "target.gguf", demo_target, "qwen35")
    files = {"target": target, "target_options": options, "proposer": "auto"}
    trimmed_file(target, FEW)

    def proposed():
        with localspec.load(**files, **ONE_THREAD) as engine:
            return inside.has_trimmed_output(engine)

    assert proposed()
    assert localspec.explain(target=target).head.num_proposed == len(FEW)
    measure(files, draft_s=0.02, outcome=0.5)
    measure(files, draft_s=0.02, outcome=1.0)
    assert not proposed()
    (said,) = localspec.explain(target=target).trimmed
    assert "is not used: measured here" in said
    assert localspec.explain(target=target).head.num_proposed is None


def changed(path):
    """Its file with other weights: the size stays as it is."""
    data = bytearray(path.read_bytes())
    for tensor in check_model_file(path).tensors:
        place = slice(tensor.offset, tensor.offset + tensor.size_bytes)
        data[place] = data[place][::-1]
    path.write_bytes(data)


def test_a_trimmed_file_of_another_file_is_not_used_and_that_is_said(files, caplog):
    """Also where both are of one size, as fine-tunes of a model are."""
    pair, trimmed = files
    assert used(pair) == [trimmed.name]
    changed(pair["draft"])
    caplog.clear()
    assert used(pair) == ["draft.gguf"]
    words = "draft-trimmed.gguf is not used: it was made of another file"
    assert words in caplog.text
    assert words in said_by_explain(pair)
    trim(pair["draft"], num_tokens=len(FEW))
    assert used(pair) == [trimmed.name]


def test_the_trimmed_output_of_another_file_is_not_used(tmp_path, own_folders, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, "qwen35")
    trimmed_file(target, FEW)
    assert localspec.explain(target=target).head.num_proposed == len(FEW)
    changed(target)
    found = localspec.explain(target=target)
    assert found.head.num_proposed is None
    assert "made of another file" in found.trimmed[0]


def test_a_file_that_only_is_called_so_is_left_alone(files, demo_draft):
    pair, trimmed = files
    shutil.copyfile(demo_draft, trimmed)
    assert used(pair) == ["draft.gguf"]
    assert said_by_explain(pair) == ""


def test_an_eagle_heads_trimmed_copy_is_found(tmp_path, own_folders, demo_target):
    target = write_head_model(tmp_path / "target.gguf", demo_target, "llama")
    head = write_head_model(tmp_path / "head.gguf", demo_target, "llama", part="head")
    trimmed = trimmed_file(head, FEW)
    files = {"target": target, "head": head}
    assert used(files) == [trimmed.name]
    assert used(files, trimmed=False) == ["head.gguf"]


def test_a_target_is_never_replaced(tmp_path, own_folders, demo_target, demo_draft):
    """A small model that was trimmed to draft for others answers whole."""
    target = shutil.copyfile(demo_draft, tmp_path / "small.gguf")
    trimmed_file(target, FEW)
    with localspec.load(target=target) as engine:
        assert inside.models(engine).target.name == "small.gguf"


def test_tokens_of_code_stay_whatever_their_ids(files):
    pair, _ = files
    trim(pair["draft"], num_tokens=1000)
    ids = set(proposed_ids(check_model_file(pair["draft"].with_name("draft-trimmed.gguf"))))
    with localspec.load(**pair, trimmed=False, **ONE_THREAD) as engine:
        counts = Counter(engine.tokenize(inspect.getsource(argparse)))
    frequent = {token for token, _ in counts.most_common(60)}
    assert max(frequent) > 1000
    assert frequent <= ids


def test_what_models_answered_decides_which_tokens_stay(files):
    pair, _ = files
    rare = [1900, 1901, 1902, 1903]
    with localspec.load(**pair, trimmed=False, memory="work") as engine:
        engine.remember(rare)
    trim(pair["draft"], num_tokens=300)
    ids = set(proposed_ids(check_model_file(pair["draft"].with_name("draft-trimmed.gguf"))))
    assert set(rare) <= ids
