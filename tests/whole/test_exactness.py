"""Texts that are the same to the bit: with any draft, any K, any threads, cached or not.

Compared without any tolerance. The target is the demo pair's, as a Q8_0 file: that type has no
tiled kernels, which are left out once in a process and so need one of their own.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import subprocess
import sys

import llama_cpp
import numpy as np
import pytest

import localspec
from engines import all_at_once
from exact_files import exact_copy, is_known_to_be_exact, requantised
from head_maker import write_head_model
from localspec.cli.commands.explain import explanation_sheet
from localspec.cli.evaluation_reports import report_text
from localspec.cli.screen import stats_lines, status_line
from localspec.errors import OptionError
from localspec.evaluation import lossless_check
from localspec.exactness import Exactness
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.tensor_types import unevenly_repacked
from localspec.llama import exact_probe
from localspec.llama.model_options import LlamaOptions
from localspec.planning.free_memory import suited_options_here
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.cancellation import Watch

ASKED = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 3},
    "constrained": {"temperature": 0.8, "seed": 4, "regex": "[a-z ]{10,40}"},
}
QUESTION = "Tell me a story about a fox."


@pytest.fixture(scope="module")
def q8_target(tmp_path_factory, demo_target):
    return exact_copy(demo_target, tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def plain_texts(q8_target):
    """Of an engine that has no draft, each by a decode of its whole prompt."""
    found = {}
    for name, asked in ASKED.items():
        with localspec.load(
            target=q8_target, exact=True, draft_tokens=0, num_threads=1
        ) as engine:
            found[name] = engine.generate(QUESTION, max_tokens=80, **asked).reply().token_ids
    return found


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("draft", ["model", "head", "lookup"])
def test_texts_are_the_same_with_any_draft(
    q8_target, demo_draft, demo_head, plain_texts, name, draft
):
    helps = {
        "model": {"draft": demo_draft},
        "head": {"head": demo_head},
        "lookup": {"proposer": "lookup"},
    }[draft]
    with localspec.load(target=q8_target, exact=True, num_threads=1, **helps) as engine:
        assert engine.exactness.all_sizes
        for count in (1, 2, 4, 8, None):  # the later ones from a cached prompt
            reply = engine.generate(
                QUESTION, max_tokens=80, draft_tokens=count, **ASKED[name]
            ).reply()
            assert reply.token_ids == plain_texts[name]
            assert reply.stats.exact


@pytest.mark.parametrize("num_threads", [2, 3])
def test_texts_are_the_same_with_any_number_of_threads(
    q8_target, demo_draft, plain_texts, num_threads
):
    with localspec.load(
        target=q8_target, draft=demo_draft, exact=True, num_threads=num_threads
    ) as engine:
        reply = engine.generate(QUESTION, max_tokens=80, **ASKED["seeded"]).reply()
    assert reply.token_ids == plain_texts["seeded"]


def test_a_conversation_is_the_same_from_its_caches_and_read_anew(q8_target, demo_draft):
    asked = ["Hello!", "Tell me about the sea.", "And about the fox?"] * 3
    options = {"temperature": 0.9, "seed": 5, "max_tokens": 60}
    with localspec.load(target=q8_target, draft=demo_draft, exact=True) as engine:
        chat = engine.chat()
        said = [chat.send(question, **options).reply().token_ids for question in asked]
        # Past the 256 cells behind which attention has other kernels.
        assert len(chat.messages) == 18
        assert chat.send("And?", **options).reply().stats.prompt_tokens > 256
        again = engine.chat()
        for question, token_ids in zip(asked, said, strict=True):
            # Nothing is cached, and the prompt is cancelled once on its way.
            engine.generate("Something else.", max_tokens=1).reply()
            answer = again.send(question, draft_tokens=0, **options)
            assert answer.reply().token_ids == token_ids


CLASSES = {
    "single tokens and a few": ((2, 5), "steps of 2 to 4, plain"),
    "up to three tokens": ((4,), "steps of 1 to 3"),
    "each size": (range(1, 99), "steps of 3 to 3, plain"),
}


@pytest.fixture
def device(monkeypatch, own_folders):
    """Make libllama add as a GPU does: in an order for each class of sizes.

    Rows also depend on how many cells attention reads. begins: where each class begins.
    """
    decode = llama_cpp.llama_decode

    @functools.cache
    def noise(kernel, shape):
        return np.random.default_rng(kernel).normal(0, 0.5, shape).astype(np.float32)

    def use(begins, *, by_place=False):
        def other_decode(context, batch):
            status = decode(context, batch)
            count = batch.n_tokens
            cells = batch.pos[count - 1] // 256
            kernel = bisect.bisect_right(begins, count) + 100 * cells
            if num_rows := sum(batch.logits[:count]):
                model = llama_cpp.llama_get_model(context)
                width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
                logits = llama_cpp.llama_get_logits(context)
                rows = np.ctypeslib.as_array(logits, (num_rows, width))
                rows += (
                    noise(kernel, (64, width))[:num_rows] if by_place else noise(kernel, width)
                )
            return status

        monkeypatch.setattr(llama_cpp, "llama_decode", other_decode)

    return use


@pytest.mark.parametrize("name", CLASSES)
def test_texts_are_the_same_within_a_class_of_sizes(q8_target, demo_draft, device, name):
    begins, words = CLASSES[name]
    device(begins)
    files = {"target": q8_target, "draft": demo_draft, "num_threads": 1}

    def texts(engine, count):
        prompt = engine.tokenize(QUESTION * 99)[:240]  # the answer begins before 256 cells
        asked = {"max_tokens": 40, "ignore_eos": True, "draft_tokens": count}
        engine.generate("Something else.", max_tokens=2).reply()  # so nothing is cached
        return [
            engine.generate_raw(prompt, **asked, **more).reply()
            for more in (ASKED["greedy"], ASKED["seeded"])
        ]

    with localspec.load(**files, exact=True) as engine:
        assert str(engine.exactness).startswith(words)
        plain = texts(engine, 0)
        assert plain[0].stats.exact_steps == str(engine.exactness)
        num_accepted = 0
        for count in (1, 8, None):
            drafted = texts(engine, count)
            assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
            num_accepted += sum(one.stats.num_accepted for one in drafted)
        assert num_accepted > 0
    with localspec.load(**files) as engine:
        usual = [texts(engine, count)[1].token_ids for count in (0, 1, 3)]
        assert len(set(usual)) > 1


def test_rows_that_depend_on_their_place_are_refused(q8_target, device):
    device((1,), by_place=True)
    with pytest.raises(OptionError, match="cannot be exact here: rows of a decode"):
        localspec.load(target=q8_target, exact=True, num_threads=1)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rpc": ["localhost:1"]}, "exact"),
        ({"exact": "auto"}, "exact is 'auto'"),
    ],
)
def test_what_cannot_be_exact_is_refused_with_the_reason(q8_target, keywords, words):
    with pytest.raises(OptionError, match=words):
        localspec.load(**{"target": q8_target, "exact": True, **keywords})


def test_an_applications_model_keeps_its_settings(demo_target):
    llama = llama_cpp.Llama(str(demo_target), n_ctx=128, verbose=False)
    try:
        with pytest.raises(OptionError, match="settings are its own"):
            localspec.load(target=llama, exact=True)
    finally:
        llama.close()


def test_it_is_probed_once(q8_target, monkeypatch):
    localspec.load(target=q8_target, exact=True, num_threads=1).close()
    monkeypatch.setattr(exact_probe, "probe_exactness", lambda *_: pytest.fail("again"))
    with localspec.load(target=q8_target, exact=True, num_threads=1) as engine:
        assert str(engine.exactness) == "all sizes"


def test_joint_decodes_that_are_not_exact_are_found_and_not_joined(q8_target, monkeypatch):
    """As with kernels that ask how many texts a decode has."""
    joined = exact_probe.TokenBatch.joined

    def other_rows(self, parts):
        if len(parts) > 1:
            parts = [part._replace(tokens=[7] * len(part.tokens)) for part in parts]
        return joined(self, parts)

    monkeypatch.setattr(exact_probe.TokenBatch, "joined", other_rows)
    options = LlamaOptions(cache_type_k="bf16", cache_type_v="bf16")  # nothing was found yet
    with localspec.load(
        target=q8_target, exact=True, target_options=options, draft_tokens=0, parallel=2
    ) as engine:
        assert engine.exactness.all_sizes
        assert not engine.exactness.joined
        before = engine.num_decodes
        asked = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        all_at_once(engine, [QUESTION, "Hello!"], **asked)
        assert engine.num_decodes - before == 24


@pytest.mark.process
def test_it_can_be_had_in_a_process_of_its_own(q8_target):
    with localspec.IsolatedEngine(target=q8_target, exact=True, draft_tokens=0) as engine:
        assert engine.exactness.all_sizes
        assert engine.generate("Hello!", max_tokens=4).reply().stats.exact


def test_answers_say_so_and_others_promise_nothing(q8_target, engine):
    with localspec.load(target=q8_target, exact=True, num_threads=1) as exact:
        stats = exact.generate("Hello!", max_tokens=4).reply().stats
    assert "exact" in status_line(stats, 512, 100).split(" · ")
    assert any(line.startswith("exact: ") for line in stats_lines(stats, 512))
    assert engine.exactness == Exactness()
    usual = engine.generate("Hello!", max_tokens=4).reply().stats
    assert not usual.exact
    assert "exact" not in status_line(usual, 512, 100)


def test_verify_counts_rows_that_are_equal(q8_target, demo_draft):
    with localspec.load(
        target=q8_target, draft=demo_draft, exact=True, num_threads=1
    ) as engine:
        prompts = [
            engine.vocabulary.tokenize(text, parse_special=False)
            for text in ("Once there was a silver falcon", "Once upon a time")
        ]
        report = lossless_check.check(
            engine,
            prompts,
            seconds=600,
            watch=Watch(lambda _stage, _seconds_left: None),
            options=AnswerOptions(),
        )
        text = report_text(report)
    rounding = report.rounding
    assert report.ended_by is None
    assert rounding.num_equal == rounding.num_rows > 100
    assert f"Equal to the bit: {rounding.num_rows} of {rounding.num_rows} rows" in text


def test_explain_says_what_it_takes_and_whether_it_was_enough(q8_target):
    def exact():
        found = localspec.explain(target=q8_target)
        [line] = [
            one for one in explanation_sheet(found).text().splitlines() if "--exact" in one
        ]
        return found.target.exactness, line

    known, line = exact()
    if known is None:
        assert "with --exact: flash attention, bf16 keys; the first load with it tests" in line
        localspec.load(target=q8_target, exact=True, num_threads=1).close()
    assert exact()[0].all_sizes
    assert "found exact on this machine" in exact()[1]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("qwen35", "Q8_0", "all sizes"),  # attention and recurrent layers
        ("gemma4", "Q8_0", "all sizes"),  # some layers look back at a window only
        ("step35", "Q8_0", "all sizes"),
        ("glm4moe", "Q8_0", "steps of 2 to"),  # the router of experts stays in F32
        ("gemma4", "ALL_F32", "steps of 2 to"),
        ("step35", "F16", "steps of 2 to"),
        ("qwen35", "ALL_F32", ""),  # it cannot take padding back
    ],
)
def test_other_architectures_are_exact_or_the_reason_is_told(
    q8_target, tmp_path, demo_target, name, kind, words
):
    """Products of floats differ between one token and several."""
    whole = write_head_model(tmp_path / "f32.gguf", demo_target, name)
    number = getattr(
        llama_cpp, f"LLAMA_FTYPE_{kind}" if "ALL" in kind else f"LLAMA_FTYPE_MOSTLY_{kind}"
    )
    path = requantised(whole, tmp_path / "other.gguf", number)
    if not words:
        with pytest.raises(OptionError, match="rows of a decode of"):
            localspec.load(target=path, exact=True, num_threads=1)
        return
    texts = set()
    with localspec.load(target=path, exact=True, num_threads=1) as engine:
        assert str(engine.exactness).startswith(words)
        for count in (0, 1, 3, None):
            answer = engine.generate_raw(
                "abcabcabcabc", max_tokens=280, temperature=0.8, seed=2, draft_tokens=count
            )
            texts.add(answer.reply().token_ids)
    assert len(texts) == 1


def test_settings_are_chosen_by_what_the_file_needs(tmp_path, demo_target):
    header = check_model_file(demo_target)  # IQ4_NL, which is repacked evenly
    chosen = suited_options_here(LlamaOptions(exact=True, num_gpu_layers=0), header, 512)
    assert (chosen.flash_attention, chosen.cache_type_k, chosen.cache_type_v) == (
        *("on", "bf16", "f16"),
    )
    assert chosen.repack is None or "IQ4_NL" in unevenly_repacked("")
    given = LlamaOptions(exact=True, num_gpu_layers=0, cache_type_k="f16")
    assert suited_options_here(given, header, 512).cache_type_v == "bf16"
    assert unevenly_repacked("AVX2 = 1 | REPACK = 1") == {"Q4_K", "MXFP4"}
    assert "Q4_0" in unevenly_repacked("AVX2 = 1 | AMX_INT8 = 1 | REPACK = 1")


TILED = """
import json, sys
import localspec
from localspec.errors import LocalspecError
from localspec.llama.library import llama_cpp
target, draft, *first = sys.argv[1:]
if first:
    other = draft if first == ["file"] else llama_cpp.Llama(draft, n_ctx=64, verbose=False)
    localspec.load(target=other, draft_tokens=0).close()
try:
    engine = localspec.load(target=target, draft=draft, exact=True, num_threads=1)
except LocalspecError as error:
    print(json.dumps(str(error)))
else:
    texts = [
        engine.generate("Tell me a story.", max_tokens=70, seed=1, draft_tokens=count)
        .reply().token_ids
        for count in (0, 1, 4, 8, 16, None)
    ]
    print(json.dumps(texts))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["IQ4_NL", "Q4_K_M", "Q6_K"])
def test_tiled_and_repacked_kernels_are_left_out(tmp_path, demo_target, demo_draft, kind):
    number = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    path = requantised(demo_target, tmp_path / f"{kind}.gguf", number)
    texts = _in_a_process(path, demo_draft)
    if isinstance(texts, str) and not is_known_to_be_exact():
        pytest.skip(f"this processor's kernels: {texts}")
    assert len(texts) == 6
    assert all(one == other for one, other in itertools.pairwise(texts))


@pytest.mark.process
@pytest.mark.parametrize("first", ["file", "object"])
def test_kernels_that_were_used_are_not_left_out(demo_target, demo_draft, first):
    """ggml asks the environment once; to be told beats a text that is not exact."""
    assert "cannot be exact in this process" in _in_a_process(demo_target, demo_draft, first)


def _in_a_process(*arguments):
    command = [sys.executable, "-c", TILED, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)
