"""What a device computes, in little: models of few layers in F32, decodes of 8 rows at most.

On a GPU these are seconds. A software device compiles a program for each kind and size of a
decode, so that these need minutes the first time, and larger ones would need hours:
`scripts/develop/software_device.py` runs them on one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import ClassVar

import pytest

import inside
import localspec
from engines import all_at_once, resumed
from gguf_maker import write_random_model
from head_maker import BlockHead, write_block_head, write_head_model, write_medusa_heads
from hybrid_maker import write_cache_kind
from localspec.evaluation import identity
from localspec.evaluation.identity import IdentityCheck, Rounding
from localspec.exactness import Exactness
from localspec.llama.library import devices
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import unused_gpu, usable_gpus
from localspec.planning import device_trials
from localspec.sampling.chain import SamplerChain

pytestmark = pytest.mark.gpu

ON_PROCESSOR = os.environ.get("LOCALSPEC_TEST_DEVICE") == "cpu"
PROMPT = [5, 42, 79, 116, 153, 190]
SAMPLINGS = {
    "greedy": localspec.SamplingParams(temperature=0),
    "usual": localspec.SamplingParams(),
    "unfiltered": localspec.SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0),
}
DRAFTERS = (
    *("draft", "lookup", "inside", "glm", "step", "eagle", "eagle-shared", "assistant"),
    *("dflash", "dspark", "medusa"),
)
# Decodes of 2 to 8 rows of Vulkan and CUDA without flash attention are alike.
CLASS = Exactness(smallest_step=2, largest_step=4, reason="")


@pytest.fixture(scope="module", autouse=True)
def device():
    """The name of the device to try; "cpu" where a processor stands in for it."""
    found = usable_gpus(devices())
    if ON_PROCESSOR:
        return "cpu"
    if not found:
        pytest.skip(unused_gpu(found, None) or "there is no GPU here, and no software device")
    return found[0].name


class Made:
    """The files of each drafter, which are made once. folder: where they are."""

    # Architectures of targets whose head is in their file, and of those with one apart.
    INSIDE: ClassVar = {"inside": "qwen35", "glm": "glm4moe", "step": "step35"}
    APART: ClassVar = {"eagle": "llama", "eagle-shared": "qwen3", "assistant": "gemma4"}

    def __init__(self, folder, tokenizer_of):
        self._folder = folder
        self._tokenizer_of = tokenizer_of
        self._files = {}

    def options(self, drafter):
        """Arguments of `load` for a drafter."""
        if drafter in ("draft", "lookup"):
            small = self._file("small", write_random_model, self._tokenizer_of, num_layers=3)
            draft = {"draft": small} if drafter == "draft" else {}
            return {"target": small, "proposer": drafter, **draft}
        head = {}
        if drafter in self.INSIDE:
            target = self._of(self.INSIDE[drafter])
        elif drafter in self.APART:
            target = self._of(self.APART[drafter])
            head = {"head": self._of(self.APART[drafter], part="head")}
        elif drafter == "medusa":
            target = self._of("qwen3")
            head = {"head": self._file(drafter, write_medusa_heads, target)}
        else:
            target = self._of("qwen3")
            head = {"head": self._file(drafter, write_block_head, target, BlockHead(drafter))}
        return {"target": target, "proposer": "head", **head}

    def _of(self, architecture, part="whole"):
        name = f"{architecture}-{part}"
        return self._file(name, write_head_model, self._tokenizer_of, architecture, part=part)

    def _file(self, name, write, *arguments, **options):
        if name not in self._files:
            path = self._folder / f"{name}.gguf"
            self._files[name] = write(path, *arguments, **options)
        return self._files[name]


@pytest.fixture(scope="module")
def opened(tmp_path_factory, demo_target, device):
    """Opens a target with what drafts for it, by a drafter's name, on the device."""
    made = Made(tmp_path_factory.mktemp("path"), demo_target)

    def open_it(drafter, *, attention="off", num_gpu_layers=None, **more):
        if device == "cpu":
            num_gpu_layers = None
        settings = LlamaOptions(flash_attention=attention, num_gpu_layers=num_gpu_layers)
        usual = {"context_length": 256, "draft_tokens": 3, "device": device}
        usual |= {"target_options": settings, "draft_options": settings}
        return localspec.load(**{**usual, **made.options(drafter), **more})

    return open_it


@pytest.fixture
def compared(monkeypatch):
    """Compares an engine's texts with those of its target alone: near ties may differ."""
    monkeypatch.setattr(identity, "COMPARED_TEXT_TOKENS", 16)
    monkeypatch.setattr(identity, "_BATCH_SIZES", (2, 4))

    def compare(engine, sampling):
        params, rounding = SAMPLINGS[sampling], Rounding()

        def chain(prompt, said=()):
            return SamplerChain(params, num_prompt_tokens=len(prompt), num_said=len(said))

        with engine, inside.lent(engine) as loop:
            check = IdentityCheck(loop, engine.vocabulary.is_end, chain, rounding, 10**6)
            reference = check.reference(PROMPT, 3)
            for num_draft_tokens in (1, 3):
                check.compare(3, reference, num_draft_tokens)
        assert check.result.num_texts >= 2
        assert check.result.bugs(rounding.bound) == []

    return compare


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_texts_are_those_of_the_target(opened, compared, drafter):
    compared(opened(drafter), "greedy")


@pytest.mark.parametrize("drafter", ["draft", "inside", "eagle"])
def test_drawn_texts_are_those_of_the_target(opened, compared, drafter):
    compared(opened(drafter), "usual")


@pytest.mark.parametrize("drafter", ["draft", "lookup"])
def test_texts_of_all_tokens_are_those_of_the_target(opened, compared, drafter):
    compared(opened(drafter), "unfiltered")


def test_texts_with_flash_attention_are_those_of_the_target(opened, compared):
    compared(opened("draft", attention="on"), "greedy")


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_part_of_the_layers_computes_there(opened, compared, device, num_layers):
    engine = opened("lookup", num_gpu_layers=num_layers)
    if device != "cpu":
        assert f"({num_layers} of 4 layers on {device})" in engine.description
    compared(engine, "greedy")


@pytest.mark.parametrize("where", ["target", "draft"])
def test_target_and_draft_compute_on_different_devices(opened, compared, where):
    here = LlamaOptions(flash_attention="off", device="cpu")
    options = {"draft_options": here} if where == "target" else {"target_options": here}
    engine = opened("draft", **options)
    if where == "draft":
        assert "layers on" not in engine.description
    compared(engine, "greedy")


def test_large_batches_alone_may_compute_there(opened, compared):
    engine = opened("lookup", num_gpu_layers=0)
    assert "layers on" not in engine.description
    compared(engine, "greedy")


@pytest.mark.parametrize("sampling", ["greedy", "usual"])
def test_exact_texts_are_the_same_to_the_bit_in_a_class(opened, monkeypatch, sampling):
    """As if the probe had found the class, whose sizes would take an hour on software."""
    monkeypatch.setattr("localspec.engine.loading._find_exactness", lambda *_: CLASS)
    with opened("draft", target_options=LlamaOptions(exact=True, flash_attention="off")) as one:
        said = {
            tuple(
                one.generate_raw(
                    PROMPT, max_tokens=24, draft_tokens=count, seed=3, sampling=params
                )
                .reply()
                .token_ids
            )
            for count in (0, 1, 2, 3)
            for params in [SAMPLINGS[sampling]]
        }
    assert len(said) == 1


@pytest.mark.parametrize("drafter", ["draft", "inside"])
def test_an_answer_behind_a_cancelled_one_is_what_it_is_without(opened, drafter):
    said = []
    options = {"max_tokens": 24, "sampling": SAMPLINGS["greedy"]}
    for is_cancelled in (False, True):
        with opened(drafter) as engine:
            with engine.generate_raw(PROMPT, **options) as answer:
                for number, _ in enumerate(answer):
                    if is_cancelled and number == 3:
                        answer.cancel()
            reply = engine.generate_raw(PROMPT[::-1], **options).reply()
            said.append(reply.token_ids)
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["llama", "qwen35"])
def test_a_cache_from_disk_goes_on_as_it_was(tmp_path, demo_target, device, kind):
    path = write_cache_kind(tmp_path / "kind.gguf", demo_target, kind)

    def open_it(**more):
        settings = LlamaOptions(flash_attention="off", context_length=256)
        return localspec.load(
            target=path, target_options=settings, device=device, draft_tokens=0, **more
        )

    with resumed(open_it, tmp_path / "kept", PROMPT):
        pass


@pytest.mark.parametrize("drafter", ["draft", "eagle"])
def test_two_answers_at_once_are_near_what_they_are_alone(opened, drafter):
    options = {"max_tokens": 12, "sampling": SAMPLINGS["greedy"]}
    with opened(drafter, parallel=2, draft_tokens=1) as engine:
        prompts = [PROMPT, PROMPT[::-1]]
        alone = [engine.generate_raw(each, **options).reply().token_ids for each in prompts]
        together = [reply.token_ids for reply in all_at_once(engine, prompts, **options)]
    assert [text[0] for text in together] == [text[0] for text in alone]
    assert [len(text) for text in together] == [len(text) for text in alone]


def test_a_constraint_holds(opened):
    with opened("draft") as engine:
        answer = engine.generate_raw(PROMPT, regex="[a-z]{3,9}( [0-9]{2}){2}", max_tokens=60)
        assert re.fullmatch("[a-z]{3,9}( [0-9]{2}){2}", answer.reply().text)


LOADING = """
import logging, sys
import localspec
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
with localspec.load(sys.argv[1], draft_tokens=0) as engine:
    print("device:", engine.device)
"""


def loaded_with(target, **environment):
    """What a load says in a process of its own with this environment."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING, target],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.process
@pytest.mark.skipif(ON_PROCESSOR, reason="needs a driver of Vulkan")
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"VK_DRIVER_FILES": "/nowhere/x.json"}, "x.json cannot be loaded: No such file"),
        ({"GGML_VK_VISIBLE_DEVICES": "7"}, "GGML_VK_VISIBLE_DEVICES=7 names a device that"),
    ],
)
def test_a_driver_that_fails_is_named_and_the_processor_computes(
    demo_target, device, environment, words
):
    if not device.startswith("Vulkan"):
        pytest.skip(f"{device} is no device of Vulkan")
    said = loaded_with(demo_target, **environment)
    assert words in said
    assert "device: CPU" in said


@pytest.mark.process
@pytest.mark.skipif(ON_PROCESSOR, reason="needs a device")
def test_a_device_that_is_not_done_is_not_used(
    demo_target, device, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(device_trials, "trials_folder", lambda: tmp_path)
    monkeypatch.setattr(device_trials, "TRIAL_S", 1.5)
    run = device_trials.run_trials

    def of_cpu_whole(made, options, slow_s):
        if all(each.device is None for each in options.values()):
            monkeypatch.setattr(device_trials, "TRIAL_S", 60.0)
            found = run(made, options, slow_s)
            monkeypatch.setattr(device_trials, "TRIAL_S", 0.2)
            return found
        return run(made, options, slow_s)

    monkeypatch.setattr(device_trials, "run_trials", of_cpu_whole)
    with localspec.load(demo_target, draft_tokens=0) as engine:
        assert f"{device} (" in engine.device
        assert "was not done with its trial" in engine.device
        assert "layers on" not in engine.description
    assert len([*tmp_path.glob("*.json")]) == len(usable_gpus(devices())) + 1
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["learned"]
