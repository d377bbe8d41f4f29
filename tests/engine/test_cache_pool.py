"""Several conversations over one engine: each finds its own caches again, exactly."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import inside
import localspec
from engines import PLACES, Owner, answer_of, answered
from hybrid_maker import CACHE_KINDS, write_cache_kind
from localspec.engine.cache_file import PooledCache
from localspec.errors import CacheError, OptionError
from localspec.llama.cache_state import CacheState
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions

GREEDY = localspec.SamplingParams(temperature=0)
QUESTIONS = ("Tell me a story about a fox.", "And one about an owl, please.", "Thank you!")


def decoded_tokens(reply):
    """Prompt tokens that the target had to decode for an answer."""
    return reply.stats.prompt_tokens - reply.stats.cached_prompt_tokens


def count_decoded(model, monkeypatch):
    """A list that grows by every number of tokens a model decodes from now on."""
    counts: list[int] = []
    real = model.decode

    def decode(tokens, num_logits):
        counts.append(len(tokens))
        return real(tokens, num_logits)

    monkeypatch.setattr(model, "decode", decode)
    return counts


def test_a_chat_that_comes_back_decodes_only_what_is_new(engine, monkeypatch):
    """By turns as alone: the same numbers in the target, and no prompt again in the draft."""
    alone = engine.chat()
    expected = [alone.send(text, sampling=GREEDY).reply() for text in QUESTIONS]
    del alone
    gc.collect()  # else the others would go on with its text
    chats = [engine.chat(), engine.chat(system="You are terse."), engine.chat()]
    replies = {chat: [] for chat in chats}
    replies[chats[0]].append(chats[0].send(QUESTIONS[0], sampling=GREEDY).reply())
    replies[chats[1]].append(chats[1].send(QUESTIONS[0], sampling=GREEDY).reply())
    replies[chats[2]].append(chats[2].send(QUESTIONS[0], sampling=GREEDY).reply())
    drafted = count_decoded(inside.models(engine).draft, monkeypatch)
    for question in QUESTIONS[1:]:
        for chat in chats:
            engine.generate_raw("Something in between.", max_tokens=3).reply()
            drafted.clear()
            replies[chat].append(chat.send(question, sampling=GREEDY).reply())
            assert decoded_tokens(replies[chat][-1]) < 25
            assert max(drafted) < 25
    for chat in (chats[0], chats[2]):
        assert [r.text for r in replies[chat]] == [r.text for r in expected]
    costs = {chat: [decoded_tokens(r) for r in replies[chat]][1:] for chat in chats}
    assert costs[chats[0]] == [decoded_tokens(r) for r in expected][1:]
    assert costs[chats[2]] == [1, 1]  # all of it is in the first one's text


def test_without_memory_everything_is_decoded_again(demo_target):
    with localspec.load(target=demo_target, kept_bytes=0) as engine:
        one, other = engine.chat(), engine.chat(system="You are terse.")
        one.send(QUESTIONS[0], sampling=GREEDY).reply()
        other.send(QUESTIONS[0], sampling=GREEDY).reply()
        again = one.send(QUESTIONS[1], sampling=GREEDY).reply()
        assert decoded_tokens(again) > 50
        assert inside.cache_pool(engine).num_bytes == 0
    with pytest.raises(OptionError, match="kept_bytes is -1"):
        localspec.load(target=demo_target, kept_bytes=-1)


def test_the_least_recently_used_text_leaves_first(demo_target):
    """The budget holds two of these; the third comes back at the full price."""
    with localspec.load(target=demo_target) as engine:
        engine.chat().send(QUESTIONS[0], sampling=GREEDY).reply()
        one_text = inside.target(engine).cache.state_bytes()
    with localspec.load(target=demo_target, kept_bytes=int(2.5 * one_text)) as engine:
        chats = [engine.chat(system=f"You are number {n}.") for n in range(4)]
        for chat in chats:
            chat.send(QUESTIONS[0], sampling=GREEDY).reply()
            assert inside.cache_pool(engine).num_bytes <= 2.5 * one_text
        # Kept are now those of the chats 1 and 2; the loop has that of 3.
        costs = [
            decoded_tokens(chats[n].send("Yes.", sampling=GREEDY, max_tokens=1).reply())
            for n in (2, 3, 0)
        ]
    assert max(costs[:2]) < 25
    assert costs[2] > 50


def text_of_size(num_bytes):
    return PooledCache([1], [CacheState(1, np.zeros(num_bytes, np.uint8))])


def test_a_text_that_is_put_replaces_the_owners_old_one(demo_target):
    """Only the new one takes room, and it was used last."""
    first, other, third = (Owner() for _ in range(3))
    with localspec.load(target=demo_target, kept_bytes=100) as engine:
        pool = inside.cache_pool(engine)
        pool.put(other, text_of_size(30))
        pool.put(first, text_of_size(60))
        pool.put(first, text_of_size(61))
        assert pool.num_bytes == 91
        with pytest.raises(CacheError):
            pool.put(first, text_of_size(101))
        assert pool.num_bytes == 91
        pool.put(other, text_of_size(31))
        pool.put(third, text_of_size(60))
        assert pool.text_of(first) is None
        assert pool.text_of(other).num_bytes == 31


def test_the_text_of_a_chat_that_is_gone_is_freed(engine):
    gc.collect()
    before = inside.cache_pool(engine).num_bytes
    chat, other = engine.chat(), engine.chat()
    chat.send("Hello", max_tokens=3).reply()
    other.send("Hi", max_tokens=3).reply()
    assert inside.cache_pool(engine).num_bytes > before
    del chat
    gc.collect()
    assert inside.cache_pool(engine).num_bytes == before


@pytest.mark.parametrize("architecture", CACHE_KINDS)
def test_what_a_copy_spares_in_each_architecture(tmp_path, demo_target, architecture):
    """Up to where the texts part; or where a cache cannot be cut there, up to a checkpoint.

    Whatever it spares, what is said is what a fresh engine says.
    """
    path = write_cache_kind(tmp_path / "model.gguf", demo_target, architecture)
    system = [5 + 37 * index % 900 for index in range(120)]
    first = [*system, *range(300, 340)]
    parted, longer = [*system, 7, 8, 9], [*first, 7, 8, 9]
    with localspec.load(target=path, draft_tokens=0, context_length=512) as engine:
        fresh = []
        for tokens in (parted, longer):
            with inside.lent(engine):
                pass  # nothing is cached
            fresh.append(answered(engine, None, tokens)[0])
        owners = [Owner() for _ in range(4)]
        answered(engine, owners[0], first)
        answered(engine, owners[1], range(400, 430))
        said, num_decoded = answered(engine, owners[2], parted)
        assert said == fresh[0]
        assert num_decoded == (3 if architecture == "llama" else len(parted))
        said, num_decoded = answered(engine, owners[3], longer)
        assert said == fresh[1]
        # What was said last can still be cut, also where a copy could not.
        assert num_decoded == (len(longer) - len(system) if architecture == "gemma3" else 3)


def test_a_short_beginning_is_not_worth_a_copy(demo_target):
    """Of a long text, which takes more time to copy than its first tokens to decode."""
    with localspec.load(target=demo_target, draft_tokens=0) as engine:
        owners = [Owner() for _ in range(3)]
        answered(engine, owners[0], range(100, 500))
        answered(engine, owners[1], range(600, 630))
        assert answered(engine, owners[2], [*range(100, 110), *range(700, 720)])[1] == 30


def test_a_state_that_is_refused_leaves_an_empty_cache(demo_target, demo_draft):
    """Another model's, and one that is cut short; the model goes on working."""
    models = [LlamaModel.open(path, LlamaOptions()) for path in (demo_target, demo_draft)]
    for model in models:
        model.decode([5, 6, 7], 1)
    state = models[1].cache.save_state()
    cut = models[0].cache.save_state()
    for wrong in (state, CacheState(3, cut.data[: cut.data.size // 2].copy())):
        with pytest.raises(CacheError, match="cannot be restored"):
            models[0].restore_state(wrong)
        assert models[0].num_cached == 0
        assert models[0].decode([5, 6, 7], 1).shape[0] == 1
    for model in models:
        model.close()


def test_a_text_whose_state_cannot_be_restored_is_decoded_anew(demo_target):
    with localspec.load(target=demo_target, draft_tokens=0) as engine:
        chat = engine.chat()
        chat.send(QUESTIONS[0], sampling=GREEDY).reply()
        prompt = chat.prompt_tokens(QUESTIONS[1])
        engine.generate_raw("Something in between.", max_tokens=3).reply()
        inside.cache_pool(engine).text_of(chat).states[0].data[:] = 0
        reply = chat.send(QUESTIONS[1], sampling=GREEDY).reply()
        assert reply.stats.cached_prompt_tokens == 0
        with inside.lent(engine):
            pass  # nothing is cached any more
        assert engine.generate_raw(prompt, sampling=GREEDY).reply().token_ids == reply.token_ids
        assert inside.cache_pool(engine).num_bytes > 0
    assert inside.cache_pool(engine).num_bytes == 0


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("opened", PLACES)
def test_no_text_of_another_client_counts_as_cached(opened, parallel, demo_target):
    """Neither in a lane nor copied out, of nobody, or while its answer runs."""
    text, owners = list(range(100, 220)), [Owner() for _ in range(6)]
    with opened(target=demo_target, draft_tokens=0, parallel=parallel) as engine:
        said, num_decoded = answered(engine, owners[0], text, client="one")
        assert num_decoded == len(text)
        for owner, client in [
            *zip(owners[1:4], ("two", "three", ""), strict=True),
            (None, "4"),
        ]:
            assert answered(engine, owner, text, client=client) == (said, len(text))
        for client in ("one", ""):  # which have their own, also in another conversation
            assert answered(engine, owners[4], [*text, 7], client=client)[1] == 1
        assert answered(engine, owners[0], [*text, 8], client="one")[1] == 1
        if parallel > 1:
            running = answer_of(engine, owners[5], text[::-1], max_tokens=90, client="one")
            next(iter(running))
            assert answered(engine, None, text[::-1], client="5")[1] == len(text)
            assert answered(engine, None, text[::-1], client="one")[1] == 1
            running.close()
