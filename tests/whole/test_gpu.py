"""What holds where a GPU computes, although decodes of several sizes round differently there.

`python -m pytest -m gpu` runs this on the machine's GPU, LOCALSPEC_TEST_DEVICE=cpu without one.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace

import llama_cpp
import numpy as np
import psutil
import pytest

import inside
import localspec
from engines import all_at_once, resumed
from exact_files import requantised
from head_maker import BlockHead, write_block_head, write_head_model, write_medusa_heads
from hybrid_maker import CACHE_KINDS, write_cache_kind
from localspec.errors import OptionError
from localspec.evaluation.identity import NUMS_DRAFT_TOKENS, IdentityCheck, Rounding
from localspec.llama.library import devices
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import unused_gpu, usable_gpus
from localspec.sampling.chain import SamplerChain

pytestmark = pytest.mark.gpu

ON_PROCESSOR = os.environ.get("LOCALSPEC_TEST_DEVICE") == "cpu"
DRAFTERS = ("draft", "head", "lookup", "inside", "dflash", "dspark", "medusa")
OF_DEMO = DRAFTERS[:3]
SAMPLINGS = {
    "greedy": localspec.SamplingParams(temperature=0),
    "usual": localspec.SamplingParams(),
    "unfiltered": localspec.SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0),
}
QUESTIONS = ("Tell me a story about a fox.", "What is 7 times 8?", "Who are you?", "Hello!")
TEXT = [5 + 37 * index % 900 for index in range(60)]
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def gpus():
    """The GPUs that libllama uses."""
    found = usable_gpus(devices())
    if not found and not ON_PROCESSOR:
        pytest.skip(unused_gpu(found, None) or "there is no GPU here")
    return found


@pytest.fixture(scope="module")
def opened(tmp_path_factory, gpus, demo_target, demo_draft, demo_head):
    """Opens a target with what drafts for it, by a drafter's name."""
    folder = tmp_path_factory.mktemp("gpu")
    inside, target = (
        write_head_model(folder / f"{name}.gguf", demo_target, name)
        for name in ("qwen35", "qwen3")
    )
    files = {
        "draft": {"target": demo_target, "draft": demo_draft, "proposer": "draft"},
        "head": {"target": demo_target, "head": demo_head, "proposer": "head"},
        "lookup": {"target": demo_target, "proposer": "lookup"},
        "inside": {"target": inside, "proposer": "head"},
        "medusa": {"head": write_medusa_heads(folder / "medusa.gguf", target)},
    }
    for kind in ("dflash", "dspark"):
        files[kind] = {
            "head": write_block_head(folder / f"{kind}.gguf", target, BlockHead(kind))
        }

    def open_it(name, **more):
        options = {"target": target, "proposer": "head", "context_length": 512, **files[name]}
        if gpus and more.get("num_gpu_layers") != 0:  # a processor may be faster for so little
            options["device"] = gpus[0].name
        return localspec.load(**{**options, **more})

    return open_it


def tokens_of(engine, question):
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return engine.vocabulary.tokenize(text, parse_special=True)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_without_drafts_but_for_near_ties(opened, drafter, sampling):
    params, rounding = SAMPLINGS[sampling], Rounding()

    def chain(prompt, said=()):
        return SamplerChain(params, num_prompt_tokens=len(prompt), num_said=len(said))

    with opened(drafter) as engine, inside.lent(engine) as loop:
        check = IdentityCheck(loop, engine.vocabulary.is_end, chain, rounding, num_wanted=10**6)
        prompt = tokens_of(engine, QUESTIONS[0]) if drafter in OF_DEMO else TEXT[:30]
        reference = check.reference(prompt, 3)
        for num_draft_tokens in NUMS_DRAFT_TOKENS:
            check.compare(3, reference, num_draft_tokens)
    found = check.result
    assert found.bugs(rounding.bound) == []
    assert found.num_texts >= 3
    assert found.num_accepted > 0 or sampling != "greedy"


@pytest.fixture(scope="module")
def even_target(demo_target, tmp_path_factory):
    """The demo target in a type whose kernels round alike for several sizes on a processor."""
    path = tmp_path_factory.mktemp("even") / "q8_0.gguf"
    return requantised(demo_target, path, llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0)


@pytest.mark.parametrize("asked", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("drafter", OF_DEMO)
def test_exact_texts_are_the_same_to_the_bit(opened, drafter, asked, even_target):
    try:
        engine = opened(drafter, target=even_target, exact=True, num_threads=1)
    except OptionError as error:
        pytest.skip(str(error))
    with engine:
        said = {
            tuple(
                engine.generate(QUESTIONS[0], max_tokens=80, draft_tokens=count, **asked)
                .reply()
                .token_ids
            )
            for count in (0, 1, 2, 3)
        }
    assert len(said) == 1


@pytest.mark.parametrize("drafter", OF_DEMO)
def test_an_answer_behind_a_cancelled_one_is_what_it_is_without(opened, drafter):
    """The same decodes, and so the same text: what was cancelled left nothing."""
    said = []
    for is_cancelled in (False, True):
        with opened(drafter, draft_tokens=3) as engine:
            with engine.generate(QUESTIONS[0], max_tokens=60, temperature=0) as answer:
                for number, _ in enumerate(answer):
                    if is_cancelled and number == 5:
                        answer.cancel()
            reply = engine.generate(QUESTIONS[1], max_tokens=30, temperature=0).reply()
            said.append(reply.token_ids)
    assert said[0] == said[1]


@pytest.mark.parametrize("drafter", OF_DEMO)
def test_a_constraint_holds(opened, drafter):
    with opened(drafter, draft_tokens=3) as engine:
        for seed in range(4):
            answer = engine.generate(
                QUESTIONS[seed], regex="[a-z]{3,9}( [0-9]{2}){3}", seed=seed
            )
            assert re.fullmatch("[a-z]{3,9}( [0-9]{2}){3}", answer.reply().text)


@pytest.fixture(scope="module", params=CACHE_KINDS)
def kind_of_cache(request, tmp_path_factory, demo_target):
    path = tmp_path_factory.mktemp("caches") / f"{request.param}.gguf"
    return write_cache_kind(path, demo_target, request.param)


def test_caches_from_disk_go_on_as_they_were(kind_of_cache, tmp_path, gpus):
    device = gpus[0].name if gpus else "cpu"
    opened = functools.partial(
        localspec.load, target=kind_of_cache, draft=kind_of_cache, device=device
    )
    with resumed(opened, tmp_path / "kept", TEXT):
        pass


def assert_near(rows, others):
    """Equal but for rounding; a wrong cache gives rows of another text."""
    assert np.abs(rows - others).max() < 0.1 * others.std()


def test_a_cut_cache_goes_on_like_a_fresh_one(kind_of_cache):
    options = LlamaOptions(context_length=256, max_outputs=4, num_snapshots=4)
    cut, fresh = (LlamaModel.open(kind_of_cache, options) for _ in range(2))
    cut.decode(TEXT, 1)
    cut.decode([7, 8, 9, 10], 4)
    cut.truncate(len(TEXT) + 1)
    text = [*TEXT, 7, 11, 12]  # a state that cannot go back is read anew
    assert_near(cut.decode(text[cut.num_cached :], 2).copy(), fresh.decode(text, 2))
    cut.close()
    fresh.close()


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("attention", ["on", "off"])
def test_rows_are_those_of_the_processor(demo_target, attention, cache_type):
    if attention == "off" and cache_type == "q8_0":
        pytest.skip("libllama reads such values by flash attention alone")
    here = LlamaOptions(
        context_length=256,
        max_outputs=4,
        flash_attention=attention,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
    )
    rows = []
    for options in (here, replace(here, num_gpu_layers=0)):
        model = LlamaModel.open(demo_target, options)
        rows.append(model.decode(TEXT, 4).copy())
        model.close()
    assert_near(*rows)


@pytest.mark.parametrize("drafter", OF_DEMO)
def test_answers_at_once_share_decodes(opened, drafter):
    options = {"max_tokens": 40, "sampling": SAMPLINGS["greedy"]}
    with opened(drafter, parallel=4, draft_tokens=3) as engine:
        prompts = [tokens_of(engine, question) for question in QUESTIONS]
        alone = [engine.generate_raw(each, **options).reply().token_ids for each in prompts]
        num_alone = engine.num_decodes
        together = [reply.token_ids for reply in all_at_once(engine, prompts, **options)]
        assert engine.num_decodes < 2 * num_alone
    assert [text[0] for text in together] == [text[0] for text in alone]


@pytest.mark.parametrize("drafter", ["draft", "head", "inside"])
def test_memory_is_given_back(opened, drafter):
    free = []
    for _ in range(4):
        with opened(drafter, draft_tokens=3, memory=False) as engine:
            engine.generate_raw(TEXT, max_tokens=20).reply()
        found = usable_gpus(devices())
        free.append(found[0].free_bytes if found else -psutil.Process().memory_info().rss)
    assert free[3] > free[1] - 32 * MIB  # the first one leaves libraries and their workspaces


def test_layers_lie_where_they_are_asked_for(opened, gpus):
    for asked, words in ((None, "25 of 25 layers on"), (3, "3 of 25 layers on"), (0, "=0")):
        with opened("lookup", num_gpu_layers=asked) as engine:
            assert (words in engine.description) is bool(gpus)
            assert len(engine.generate("Hi", max_tokens=3).reply().token_ids) > 0
