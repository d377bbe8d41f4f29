"""Engines that answer the same question in turn, on weights they share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.chat.prompt_source import MessagesSource, RawSource
from localspec.engine.base import question_messages
from localspec.engine.engine import Engine
from localspec.engine.loading import prepare_kernels
from localspec.engine.open_models import CacheRoom, Models
from localspec.engine.proposer_choice import (
    choose_policies,
    choose_proposers,
    choose_threads,
)
from localspec.errors import OptionError
from localspec.evaluation.prompts import Task, built_in_tasks
from localspec.gguf_file.check import check_model_file
from localspec.llama.cache_state import CacheState
from localspec.llama.handle import Handle
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import DEFAULT_SNAPSHOTS, LlamaOptions
from localspec.llama.opening import context_params, new_context
from localspec.planning.free_memory import suited_options_here
from localspec.planning.plan import target_context_length
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import LARGEST_STEP
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, REPLAY_TOKENS, Drafting
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.record import PromptSource
from localspec.streaming.reply import Reply

PLAIN = "plain"
WITHOUT_DRAFT: dict[str, Drafting] = {
    PLAIN: Drafting(0),
    "lookup": Drafting(None, "lookup"),
    "automatic": Drafting(),
    "automatic-known": Drafting(),
}
WITH_DRAFT: dict[str, Drafting] = {
    **{f"draft-{count}": Drafting(count, "draft") for count in (1, 2, 3, 4)},
    "pair": Drafting(),
    "pair-known": Drafting(),
}
# Each side reads so many tokens of a prompt by itself: a policy takes a shorter decode for a
# step, and would know one step's time before the first.
_READ_BY_EACH = LARGEST_STEP + 15
_LEARNED_FROM = ("code", "chat", "arithmetic")
_LEARNING_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished answer. seconds: for all tokens but the first, which is the prompt's.

    drafted, accepted: tokens at each place of a draft; of llama-server only their sums, at
    the first place. text, token_ids: of the whole answer.
    """

    token_ids: tuple[int, ...]
    text: str
    seconds: float
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def tokens_per_s(self) -> float | None:
        """None of an answer with fewer than two tokens."""
        if len(self.token_ids) < 2 or self.seconds <= 0.0:
            return None
        return (len(self.token_ids) - 1) / self.seconds

    def speed_against(self, other: Answered) -> float | None:
        """Its tokens/s ÷ the other's."""
        ours = self.tokens_per_s
        theirs = other.tokens_per_s
        if ours is None or theirs is None:
            return None
        return ours / theirs


class Weights:
    """A model file that is opened once; every context of it has a cache of its own."""

    def __init__(self, path: Path, options: LlamaOptions) -> None:
        header = check_model_file(path)
        length = target_context_length(header, options.context_length)
        self._options = suited_options_here(options, header, length)
        prepare_kernels(self._options, header)
        self.reader = LlamaModel.open(path, self._options)
        self.reader.may_change_threads = options.num_threads is None
        self._others: list[LlamaModel] = []

    def context(self) -> LlamaModel:
        """Another one, which lives as long as this at most."""
        first = self.reader
        options = self._options
        assert first.handle.model is not None
        params = context_params(options, first.context_length)
        context = new_context(first.handle.model, first.name, params)
        handle = Handle(context, first.name, weights_owner=first.handle)
        with handle.closed_on_failure():
            model = LlamaModel(
                handle, first.context_length, options.max_outputs, options.summary
            )
        model.may_change_threads = first.may_change_threads
        self._others.append(model)
        return model

    def close(self) -> None:
        """Free everything."""
        for model in (*self._others, self.reader):
            model.close()


class Sides:
    """An engine for each name. draft: None where no name needs one."""

    def __init__(self, target: Weights, draft: Weights | None, names: Sequence[str]) -> None:
        self._target = target
        self._draft = draft
        self.engines: dict[str, Engine] = {}
        self._models: dict[str, Models] = {}
        self._learned: dict[str, dict[str, Any]] = {}
        for name in names:
            model = None
            if name in WITH_DRAFT:
                assert draft is not None
                model = draft.context()
                if model.may_change_threads:
                    choose_threads(model)
            models = self._models[name] = Models(target.context(), model, None)
            drafting = {**WITHOUT_DRAFT, **WITH_DRAFT}[name]
            # Without the memory of earlier answers: each question is asked several times.
            self.engines[name] = Engine(
                models, drafting, SamplingParams(), name, CacheRoom(0), memory=False
            )
        self._num_answered = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all sides."""
        return tuple(self.engines)

    def close(self) -> None:
        """Free the engines."""
        for engine in self.engines.values():
            engine.close()

    def check(self, task: Task) -> None:
        """Raise OptionError if the model cannot be asked it."""
        if not task.suits(self.engines[PLAIN]):
            raise OptionError("this model calls no tools", "Leave it out with --only.")

    def are_same(self, one: Answered, other: Answered) -> bool:
        """Whether two texts are the same, token by token, but for what ends them."""
        is_end = self.engines[PLAIN].vocabulary.is_end
        kept = [
            [token for token in each.token_ids if not is_end(token)] for each in (one, other)
        ]
        return kept[0] == kept[1]

    def prompt(self, task: Task) -> list[int]:
        """The token ids that the models read. Raises as `Engine.generate` does."""
        engine = self.engines[PLAIN]
        source: PromptSource = RawSource(task.text)
        if engine.chat_template is not None:
            use = AnswerOptions.of(None, **task.keywords).tool_use(())
            source = MessagesSource(question_messages(task.messages, None), use)
        return list(engine._make_prompt(source).prompt.tokens)

    def learn(self) -> None:
        """Let the sides that know something beforehand answer a few questions for that."""
        names = [name for name in self.names if name.endswith("-known")]
        tasks = {task.kind: task for task in built_in_tasks()}
        for kind in _LEARNED_FROM if names else ():
            self.answer(tasks[kind], names, max_tokens=_LEARNING_TOKENS, temperature=0.0)
            for name in names:
                policy = self.engines[name]._draft_policy
                assert isinstance(policy, AdaptiveDraftPolicy)
                self._learned[name] = policy.as_dict()

    def answer(
        self, task: Task, names: Sequence[str], *, max_tokens: int, temperature: float
    ) -> dict[str, Answered]:
        """The answers of these sides. The target reads all but the prompt's end once for all.

        Another one is first each time. Raises as `Engine.generate` does.
        """
        begin = self._read(self.prompt(task), names)
        self._num_answered += 1
        first = self._num_answered % len(names)
        found = {}
        for name in (*names[first:], *names[:first]):
            begin(name)
            answer = task.ask(
                self.engines[name], max_tokens=max_tokens, temperature=temperature
            )
            found[name] = _answered(answer.reply())
        return {name: found[name] for name in names}

    def _read(self, prompt: list[int], names: Sequence[str]) -> Callable[[str], None]:
        """Read a prompt but for its end. Gives what puts that into a side's caches.

        The draft's too where its number of tokens is fixed, as llama-server's has read it by
        then; otherwise reading is what a policy decides on.
        """
        begun = prompt[: max(len(prompt) - _READ_BY_EACH, 0)]
        of_target = _state_of(self._target.reader, begun)
        of_draft = None
        if self._draft is not None and any(map(num_drafted, names)):
            of_draft = _state_of(self._draft.reader, begun)

        def begin(name: str) -> None:
            engine = self.engines[name]
            models = self._models[name]
            engine.exclusively(lambda _: None)  # which empties its caches
            if of_target is not None:
                engine._decoder.tokens = list(begun)
                models.target.restore_state(of_target)
            if of_draft is not None and num_drafted(name):
                assert models.draft is not None
                models.draft.restore_state(of_draft)
            if isinstance(engine._draft_policy, AdaptiveDraftPolicy):
                engine._draft_policy = self.policy(name)
                if name not in self._learned:  # a lookup counts what it found, too
                    proposers, _ = choose_proposers(
                        models, engine.drafting, engine.shared_vocabulary
                    )
                    engine._decoder.proposers = tuple(proposers)

        return begin

    def policy(self, name: str) -> AdaptiveDraftPolicy:
        """A policy that knows nothing, or what the learning gave."""
        engine = self.engines[name]
        learning, _ = choose_policies(
            self._models[name], engine.drafting, engine._decoder.proposers, lambda: True
        )
        policy = learning.policy
        assert isinstance(policy, AdaptiveDraftPolicy)
        if name in self._learned:
            policy.restore(self._learned[name])
        return policy


def _state_of(reader: LlamaModel, tokens: list[int]) -> CacheState | None:
    """The state of its cache after these tokens; None if there are none."""
    reader.truncate(0)
    if not tokens:
        return None
    reader.decode(tokens, 0)
    return reader.cache.save_state()


def _answered(reply: Reply) -> Answered:
    return Answered(
        reply.token_ids,
        reply.text,
        reply.stats.total_time_s - reply.stats.time_to_first_token_s,
        reply.stats.drafted_per_position,
        reply.stats.accepted_per_position,
    )


def target_options(
    context_length: int, num_threads: int | None, *, exact: bool = False
) -> LlamaOptions:
    """Options of a target with drafts."""
    return LlamaOptions(
        context_length=context_length,
        num_threads=num_threads,
        exact=exact or None,
        max_outputs=MAX_DRAFT_TOKENS + 1,
        num_snapshots=DEFAULT_SNAPSHOTS,
        with_head=False,
    )


def draft_options(of_target: LlamaOptions) -> LlamaOptions:
    """Options of its draft."""
    return replace(of_target, max_outputs=REPLAY_TOKENS, num_snapshots=0, exact=None)


def num_drafted(name: str) -> int | None:
    """The fixed number of draft tokens that a side's name ends in."""
    found = re.search(r"draft-(\d+)$", name)
    if found:
        return int(found[1])
    return None
