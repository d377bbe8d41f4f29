"""Whatever drafts, an answer about pictures is the one that plain decoding gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import localspec
from engines import Owner
from head_maker import write_head_model
from localspec.streaming.answer_text import Prompt
from picture_prompts import GREEDY, asked, prompt_of
from vision_maker import (
    random_picture,
    write_projector,
    write_vision_pair,
    write_vision_tokenizer,
)

SAMPLED = localspec.SamplingParams(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.1
)
# A model with a head, and a projector of a kind that its architecture takes.
HEADS = {
    "qwen35": "qwen2vl_merger",  # a hybrid, whose positions have parts
    "llama": "idefics3",
    "qwen3": "idefics3",
    "gemma4": "gemma3",
}
ASKED = {"max_tokens": 24}


def files_of_head(folder, name):
    """What `load` takes for a model with that head."""
    kind = HEADS[name]
    tokenizer = write_vision_tokenizer(folder, kind)
    found = {
        "target": write_head_model(folder / f"{name}.gguf", tokenizer, name),
        "mmproj": write_projector(folder / f"mmproj-{name}.gguf", kind),
        "proposer": "head",
    }
    if name != "qwen35":
        head = folder / f"head-{name}.gguf"
        found["head"] = write_head_model(head, tokenizer, name, part="head")
    return found


def files_of_draft(folder, name):
    """The same for a model and what else drafts for it."""
    kind, _, proposer = name.partition(" ")
    target, mmproj = write_vision_pair(folder, kind)
    found = {"target": target, "mmproj": mmproj, "proposer": "draft"}
    if proposer == "draft":
        return found | {"draft": target}
    return found | {"proposer": "lookup"}


@pytest.fixture(
    scope="module",
    params=[
        *HEADS,
        *("gemma3 draft", "gemma3 lookup", "qwen2vl_merger draft", "qwen3vl_merger lookup"),
    ],
)
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    make = files_of_head if request.param in HEADS else files_of_draft
    return make(folder, request.param)


def talked(engine, **options):
    """What is said in two chats about pictures, by turns, with text that repeats."""
    owners, said = [Owner(), Owner()], []
    prompts = [
        prompt_of(engine, "see see see ", random_picture(seed), "what is it what is it")
        for seed in (1, 2)
    ]
    prompts[1] = prompt_of(
        engine, "ab ", random_picture(2), "and ", random_picture(1, 40, 70), "ab ab"
    )
    for _ in range(2):
        for place, owner in enumerate(owners):
            prompt = prompts[place]
            reply, _ = asked(engine, prompt, owner, **(ASKED | options))
            said.append(reply)
            more = engine.tokenize("and what is it")
            tokens = [*prompt.tokens, *reply.token_ids, *more]
            prompts[place] = Prompt(tokens, pictures=prompt.pictures)
    return said


def ids(replies):
    return [reply.token_ids for reply in replies]


@pytest.fixture(scope="module")
def plain(files):
    """The texts without drafts: greedy, and with a seed."""
    with localspec.load(**files | {"draft_tokens": 0}, num_threads=1) as engine:
        greedy = ids(talked(engine, sampling=GREEDY))
        return greedy, ids(talked(engine, sampling=SAMPLED, seed=7))


@pytest.mark.parametrize("count", [1, 5])
def test_answers_about_pictures_are_plain_decodings(files, plain, count):
    with localspec.load(**files, draft_tokens=count, num_threads=1, memory=False) as engine:
        greedy = talked(engine, sampling=GREEDY)
        seeded = talked(engine, sampling=SAMPLED, seed=7)
    assert ids(greedy) == plain[0]
    assert ids(seeded) == plain[1]
    assert sum(reply.stats.num_draft_tokens for reply in greedy) > 0


def test_answers_at_once_about_pictures(files, plain):
    opened = localspec.load(**files, draft_tokens=3, parallel=2, num_threads=1)
    with opened as engine, ThreadPoolExecutor(2) as pool:
        talks = [pool.submit(talked, engine, sampling=GREEDY) for _ in range(2)]
        for talk in talks:
            assert ids(talk.result()) == plain[0]
