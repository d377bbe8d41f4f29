"""Engines of the demo pair: the two places where one can live, and one that tests share."""

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import inside
import localspec
from localspec.chat.prompt_source import ReadySource
from localspec.llama.joint_costs import RowTimes
from localspec.sampling.params import SamplingParams
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.record import AnswerRecord

PLACES = [
    pytest.param(localspec.load, id="here"),
    pytest.param(localspec.IsolatedEngine, id="isolated", marks=pytest.mark.process),
]


class Owner:
    """A conversation, to the pool of caches."""


def answer_of(engine, owner, tokens, *, max_tokens=8, client=""):
    """A greedy answer to an owner's prompt, to be read."""
    greedy = localspec.SamplingParams(temperature=0)
    options = AnswerOptions.of(sampling=greedy, max_tokens=max_tokens, draft_tokens=3)
    record = AnswerRecord(options, ReadySource(Prompt(list(tokens))))
    record.owner = owner
    record.client = client
    return inside.answer(engine, record)


def answered(engine, owner, tokens, **options):
    """A greedy answer to an owner's prompt, and the prompt tokens that it had to decode."""
    reply = answer_of(engine, owner, tokens, **options).reply()
    stats = reply.stats
    return reply.token_ids, stats.prompt_tokens - stats.cached_prompt_tokens


@contextlib.contextmanager
def resumed(opened, path, prompt):
    """An engine that went on with a text whose caches another one had kept on disk.

    opened: loads the models. It decodes nothing of the text again, and says what the first
    engine said then.
    """
    owner, more = Owner(), [7, 8, 9]
    # Threads chosen by trying could be others the second time: another setting.
    with opened(num_threads=1) as engine:
        tokens = [*prompt, *answered(engine, owner, prompt, max_tokens=30)[0]]
        inside.save_caches_of(engine, owner, path)
        expected = answered(engine, owner, [*tokens, *more], max_tokens=30)
    with opened(num_threads=1) as engine:
        assert inside.load_caches_of(engine, owner, path)
        assert answered(engine, owner, [*tokens, *more], max_tokens=30) == expected
        assert expected[1] <= 1 + len(more)
        yield engine


def all_at_once(engine, prompts, **options):
    """The replies to some prompts, each read in a thread of its own, and begun together."""
    answers = [engine.generate_raw(prompt, **options) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        with inside.held(inside.worker_of(engine), len(prompts)):
            replies = [pool.submit(answer.reply) for answer in answers]
        return [reply.result() for reply in replies]


def assert_drafts_at_once_as_alone(made, prompt):
    """Four answers at once say what plain decoding says, each is drafted as well as alone, and
    they share decodes.

    made: has the plain text of the prompt, and opens an engine. Later answers to the same
    prompt begin with a copy of the first's, so how well it is drafted is looked at of others.
    """
    asked = {"max_tokens": 40, "sampling": SamplingParams(temperature=0)}
    others = [prompt, prompt[::-1], prompt[1:] + prompt[:1], prompt[2:] + prompt[:2]]
    with made.opened(draft_tokens=3) as engine:
        alone = [engine.generate_raw(each, **asked).reply() for each in others]
        num_alone = engine.num_decodes
    # Of models as small as these, times say by chance whether joining two sizes pays.
    with (
        pytest.MonkeyPatch.context() as patch,
        made.opened(parallel=4, draft_tokens=3) as engine,
    ):
        patch.setattr(RowTimes, "pays", lambda *_: True)
        replies = all_at_once(engine, others, **asked)
        assert engine.num_decodes < 0.75 * num_alone
        for reply in (replies[0], *all_at_once(engine, [prompt] * 2, **asked)):
            assert reply.token_ids == made.plain
            assert reply.stats.num_draft_tokens > 0
    for reply, one in zip(replies, alone, strict=True):
        assert reply.token_ids == one.token_ids
        assert reply.stats.num_draft_tokens > 0
        assert reply.stats.num_accepted == one.stats.num_accepted


class SharedEngine:
    """The demo pair, loaded once, and given to one test after another as if it were new.

    With a fixed number of draft tokens: then steps, and how they round, repeat.
    """

    def __init__(self) -> None:
        self._load()

    def as_loaded(self) -> localspec.Engine:
        """Without what tests left: conversations, caches, settings, an answer that goes on."""
        gc.collect()
        try:
            with inside.lent(self._engine):
                self._engine.sampling, inside.loop(self._engine).draft_policy = self._usual
            self._engine.free_kept()
        except localspec.EngineError:  # it is closed, or an answer was left in the midst
            self.close()
            self._load()
        return self._engine

    def close(self) -> None:
        with contextlib.suppress(localspec.EngineError):
            self._engine.close()

    def _load(self) -> None:
        self._engine = localspec.load(draft_tokens=3, memory=False)
        # Measured at load, which a busy moment may change.
        inside.loop(self._engine).draft_policy.keeps_sizes = False
        self._usual = self._engine.sampling, inside.loop(self._engine).draft_policy
