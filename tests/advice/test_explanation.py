"""What is said of a pair before it is downloaded or loaded."""

from __future__ import annotations

import json
import re

import gguf
import pytest
from click.testing import CliRunner

import inside
from call_families import FAMILIES
from gguf_maker import with_template, write_random_model
from head_maker import write_head_model
from localspec.advice.explanation import explain
from localspec.cli import main
from localspec.cli.commands.explain import explanation_sheet
from localspec.engine.loading import load
from localspec.errors import ModelFileError, OptionError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile
from localspec.speculative.policy_api import ProposerKind
from simulated import STAIRS
from standin_hub import StandinHub

FIRST_READ = 8 << 20


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["explain", *(str(a) for a in arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_preset_is_explained_without_its_download(hub: StandinHub, pair_files):
    found = explain("qwen2-7b")
    assert not found.target.is_here
    assert not hub.gets("config.json")
    for facts, content in zip((found.target, found.draft), pair_files, strict=True):
        assert facts.size_bytes == len(content)
        assert hub.num_sent[facts.name] <= min(len(content), FIRST_READ)
    assert (found.target.width, found.draft.width) == (192, 64)
    assert found.vocabulary.size == 4096
    assert found.can_draft
    assert "qwen2-7b@q4_0" in found.variants
    text = run("qwen2-7b")
    assert "MB to download" in text
    assert "4096 tokens shared" in text


def test_weights_are_counted_as_they_are_stored(tmp_path, demo_target):
    """A file may store the embeddings twice, so the maker's size is named beside the count."""
    stated = {"general.size_label": "1.5M"}
    path = write_random_model(
        tmp_path / "twice.gguf", demo_target, width=128, num_layers=4, extra=stated
    )
    facts = explain(target=path).target
    stored = {tensor.name: tensor.n_elements for tensor in gguf.GGUFReader(path).tensors}
    assert facts.num_weights == sum(stored.values())
    assert facts.num_output_weights == stored["output.weight"] == stored["token_embd.weight"]
    assert facts.size_label == "1.5M"
    assert re.search(
        r"^ +llama 1\.5M, 2 million weights stored, 1 million of them in its output layer$",
        run(path),
        re.M,
    )
    assert explain().target.num_output_weights == 0
    assert re.search(r"^ +llama, 22 million weights stored$", run("demo"), re.M)


def test_it_says_whether_the_template_has_tools(tmp_path, demo_target):
    path = with_template(demo_target, tmp_path / "tooled.gguf", FAMILIES["Qwen"].template)
    assert explain(target=path).target.has_tools
    assert "Tools      its chat template has them" in run("--target", path)
    assert not explain().target.has_tools
    assert "Tools      described in words" in run("demo")


def test_the_facts_are_those_of_the_loaded_pair(demo_target, demo_draft):
    found = explain()
    with load() as engine:
        assert found.memory.context_length == engine.context_length
        assert found.target.vocab_size == engine.vocabulary.size
        assert found.vocabulary == engine.shared_vocabulary
    assert found.target.size_bytes == demo_target.stat().st_size
    assert sum(found.draft.type_bytes.values()) < demo_draft.stat().st_size
    assert found.fits


def test_answers_at_once_are_counted_as_load_opens_them():
    """As many as half of the memory for caches pays for; the rest of it is left."""
    alone, four = explain(), explain(parallel=4)
    one, several = alone.at_once, four.at_once
    assert (one.num, one.num_bytes, several.num) == (1, 0, 4)
    assert four.memory.needed_bytes == alone.memory.needed_bytes + several.num_bytes
    assert several.kept_bytes == one.kept_bytes - several.num_bytes
    with load(parallel=4) as engine:
        assert engine.parallel == 4
        assert engine.memory().models.needed_bytes == four.memory.needed_bytes
    few = explain(parallel=4, kept_bytes=several.num_bytes)
    assert 1 < few.at_once.num < 4
    shown = " ".join(run("--parallel", "4").split())
    assert "4 of 4 answers at once, each with the whole context: " in shown
    assert "at once" not in run()
    with pytest.raises(OptionError, match="parallel is 17"):
        explain(parallel=17)


def test_a_pair_that_does_not_fit_together_is_explained(tmp_path, demo_target):
    other = write_random_model(
        tmp_path / "other.gguf",
        demo_target,
        replace_tokens={n: f"other{n}" for n in range(1000, 4096)},
    )
    head = write_head_model(tmp_path / "head.gguf", demo_target, "qwen35", part="head")
    for option, words in (
        (f"--draft={other}", "3096 of 4096 tokens differ: 1000 is b"),
        (f"--draft={other}", "needs the same 4096 tokens, or nearly, and at most"),
        (f"--head={head}", "NO PAIR    a head only drafts for the model"),
    ):
        options = ["explain", "--target", str(demo_target), option]
        told = CliRunner().invoke(main, options)
        assert told.exit_code == 1
        assert words in told.stdout
        assert told.stdout.count("NO PAIR") == 1
        assert "it fits" not in told.stdout
    whole = CliRunner().invoke(main, [*options, "--json"])
    assert whole.exit_code == 1
    assert json.loads(whole.stdout)["is_pair"] is False


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"draft": "d.gguf"}, OptionError),
        ({"preset": "demo", "target": "t.gguf"}, OptionError),
        ({"target": "absent.gguf"}, ModelFileError),
        ({"context_length": 2049}, OptionError),
        ({"num_gpu_layers": -1}, OptionError),
    ],
    ids=str,
)
def test_what_load_refuses_is_refused_in_the_same_words(asked, error):
    messages = set()
    for ask in (explain, load):
        with pytest.raises(error) as caught:
            ask(**asked)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_recurrent_model_is_said_to_be_decoded_plainly(tmp_path, demo_target):
    mamba = write_random_model(tmp_path / "m.gguf", demo_target, architecture="mamba")
    shown = run("--target", mamba, "--draft", demo_target)
    assert "the target's cache cannot be rolled back: plain decoding" in shown
    assert "Speed-up" not in shown
    alone = run("--target", mamba)
    assert "Draft      none: the target's cache cannot be rolled back: plain decoding" in alone


def test_a_context_that_does_not_fit_is_said_to(tmp_path, demo_target):
    path = write_random_model(tmp_path / "l.gguf", demo_target, context_length=1 << 30)
    shown = run("--target", path, "--ctx", 1 << 30)
    assert "IT DOES NOT FIT; a context of up to" in shown
    assert re.search("the preset [a-z0-9.@_-]+ fits", shown)
    assert "none: lookup drafts without a model" in shown


def test_measured_costs_give_the_gain(own_folders, demo_target, demo_draft):
    """Those of the demo pair, as an engine of it would keep them."""
    assert explain().gains is None
    assert "not measured on this machine yet" in run()
    policy = AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.12}, 1)
    policy.costs.learn_plain(0.1)
    policy.costs.learn_draft(ProposerKind.DRAFT, 1, 1, 0.1 * 0.12)
    for size, ratio in enumerate((*STAIRS[2:], *[5.0] * 8), 2):
        for _ in range(3):
            policy.costs.learn_size(size, ratio)
    files = []
    for path in (demo_target, demo_draft):
        with load(target=path, draft_tokens=0) as engine:
            files.append(inside.target(engine).identity)
    Profile(files).save(policy.as_dict())
    found = explain()
    speedups = [gain.speedup for gain in found.gains]
    assert speedups == sorted(speedups)
    assert found.gains[-1].num_draft_tokens == 3
    assert 0.3 < found.break_even < 0.7
    text = explanation_sheet(found).text()
    assert f"pays if at least {found.break_even:.0%} of its tokens are accepted" in text
    assert f"if 90% are: {speedups[-1]:.2f} times as fast, with 3 draft tokens" in text


@pytest.mark.parametrize(
    ("widths", "words"),
    [((128, 128), "100% of its size"), ((64, 256), "is larger"), ((256, 64), "")],
)
def test_a_pair_of_wrong_sizes_is_warned_of(tmp_path, demo_target, caplog, widths, words):
    """By explain, and by load where the draft is used."""
    target, draft = (
        str(write_random_model(tmp_path / f"{role}.gguf", demo_target, width=width))
        for role, width in zip(("target", "draft"), widths, strict=True)
    )
    found = explain(target=target, draft=draft)
    shown = run("--target", target, "--draft", draft)
    load(target=target, draft=draft, draft_tokens=0).close()
    assert not caplog.records
    load(target=target, draft=draft, num_threads=1).close()
    if words:
        assert found.size_warning.startswith("draft.gguf drafts for target.gguf and ")
        assert words in found.size_warning
        assert f"Sizes      {found.size_warning}" in shown
        (record,) = caplog.records
        assert record.getMessage() == found.size_warning
    else:
        assert found.size_warning == ""
        assert "Sizes" not in shown
        assert not caplog.records
