"""The one door through which tests reach what localspec keeps private.

No other file of the tests names a private attribute of the package: ruff's SLF001 refuses
it. What the public interface says as well is asked there.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.chat import Chat
from localspec.chat.prompt_source import MessagesSource, ReadySource
from localspec.chat.template import Message
from localspec.chat.turns import Turn
from localspec.chat.workshop import PromptWorkshop
from localspec.cli.agents import ServerForAgent
from localspec.cli.commands import launch
from localspec.cli.commands.serve import _parallel_in_words
from localspec.cli.terminal.line_editor import _history
from localspec.engine.base import BaseEngine
from localspec.engine.cache_pool import CachePool
from localspec.engine.engine import Engine
from localspec.engine.lane import Lane
from localspec.engine.loading import _open_models as open_models  # noqa: F401
from localspec.engine.open_models import Models
from localspec.engine.worker import Worker
from localspec.isolated.child import ServedRecord
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.isolated.process import ChildProcess
from localspec.isolated.process_messages import StartAnswer
from localspec.keywords import _TABLE, _Row
from localspec.llama.head import LlamaHead
from localspec.llama.hidden_rows import HiddenRows
from localspec.llama.model import LlamaModel
from localspec.llama.model_vocabulary import LlamaVocabulary
from localspec.policy.profile import Profile
from localspec.presets.local_models import _used_paths, _used_paths_file
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.distribution import Distribution, Logits
from localspec.server.running import Runner, _ClientConnection
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.model_api import result_of
from localspec.speculative.proposers import DraftModel
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.record import AnswerRecord, MadePrompt, PromptSource
from localspec.streaming.reply import Piece
from localspec.tools.tool import ToolUse
from waiting import wait_until

# keywords


def foreign_rows() -> Sequence[_Row]:
    """The table of what other libraries and programs call our keywords."""
    return _TABLE


# engine


def models(engine: Engine) -> Models:
    """What is loaded: tests look at each model's cache, threads and decodes."""
    return engine._models


def target(engine: Engine) -> LlamaModel:
    """The target among them: tests watch, slow down and count its decodes."""
    return engine._target


def projector_context(model: LlamaModel) -> int:
    """libmtmd's pointer, for llama.cpp's own way of reading pictures."""
    assert model.vision is not None
    assert model.vision._context is not None
    return model.vision._context


def position(model: LlamaModel) -> int:
    """Where libllama puts the next token: less than what is cached, behind some pictures."""
    return model.cache.position


def loop(engine: Engine) -> SpeculativeDecoder:
    """The loop with its tokens, proposers and draft policy: `Engine.exclusively` empties it."""
    return engine._decoder


def lane(engine: Engine, owner: object) -> Lane:
    """Where a conversation's text is: tests look at what its head has read."""
    return next(lane for lane in engine._lanes if lane.owner() is owner)


def lanes(engine: Engine) -> list[Lane]:
    """All of them: a test has their loops step by its own numbers."""
    return engine._lanes


@contextlib.contextmanager
def held(worker: Worker, num_answers: int) -> Iterator[None]:
    """Lets a worker begin so many answers at once, when all their prompts are made."""
    is_there, is_over = threading.Event(), threading.Event()
    worker.put(lambda: (is_there.set(), is_over.wait()))
    is_there.wait()
    try:
        yield
        wait_until(lambda: worker._inbox.qsize() >= num_answers)
    finally:
        is_over.set()


def worker_of(engine: Engine) -> Worker:
    """The thread that computes for it."""
    return engine._worker


def save_caches_of(engine: Engine, owner: object, path: Path) -> bool:
    """`save_caches`, for a text that no chat has."""
    return engine._save_caches_of(owner, path)


def load_caches_of(engine: Engine, owner: object, path: Path) -> bool:
    """`load_caches`, for a text that no chat has."""
    return engine._load_caches_of(owner, path)


def cache_pool(engine: Engine) -> CachePool:
    """Where the caches of waiting conversations are: tests change texts and break caches."""
    return engine._cache_pool


def switch_to(engine: Engine, owner: object | None, tokens: Sequence[int]) -> None:
    """Put another conversation's text into the loop, as its answer does."""
    engine._cache_pool.switch_to(engine._lanes[0], owner, tokens, engine._default_scope)


@contextlib.contextmanager
def lent(engine: Engine) -> Iterator[SpeculativeDecoder]:
    """`Engine.exclusively` as a block: its thread waits meanwhile, and the test computes."""
    lending: Future[SpeculativeDecoder] = Future()
    is_over = threading.Event()

    def lend(loop: SpeculativeDecoder) -> None:
        lending.set_result(loop)
        is_over.wait()

    with ThreadPoolExecutor(1) as pool:
        lent = pool.submit(engine.exclusively, lend)
        lent.add_done_callback(
            lambda done: lending.done() or lending.set_exception(done.exception())
        )
        try:
            yield lending.result()
        finally:
            is_over.set()
            if lending.exception() is None:
                lent.result()


def profile(engine: Engine) -> Profile | None:
    """What was learned of the pair, and its file: a test says for which files it counts."""
    return engine._lanes[0].profile


def save_profile(engine: Engine) -> None:
    """Keep what was learned now, as each answer does at its end."""
    engine._save_profile()


def constraint(
    engine: Engine,
    options: AnswerOptions,
    prompt: Prompt,
    is_cancelled: CancelCheck = never,
) -> Constraint | None:
    """What an answer to the prompt is to fit: tests ask it for masks, without an answer."""
    return engine._constrainer.constraint(options, prompt, is_cancelled)


def answer(engine: BaseEngine, record: AnswerRecord) -> Answer:
    """The answer of any record: tests give prompts and owners that no chat would have."""
    return engine._answer(record)


def made(engine: BaseEngine, source: PromptSource) -> MadePrompt:
    """The prompt of any source: tests have sources that no caller would give."""
    return engine._make_prompt(source)


def prompt(
    engine: BaseEngine,
    messages: Sequence[Message],
    use: ToolUse | None = None,
    template: str | None = None,
) -> Prompt:
    """What `generate` has the model read of messages: tests compare its tokens."""
    return engine._make_prompt(MessagesSource(messages, use or ToolUse(), template)).prompt


def prepare(engine: BaseEngine, tokens: Sequence[int], owner: object) -> None:
    """What `Chat.prepare` asks of an engine: tests do it with other tokens."""
    engine._prepare_next_prompt(ReadySource(Prompt(list(tokens))), owner=owner)


def keep_on_disk(engine: Engine | IsolatedEngine) -> None:
    """What the server has an idle engine do: tests do not wait for it."""
    engine._keep_on_disk()


def num_in_line(engine: BaseEngine) -> int:
    """How many answers an engine has that run or wait: tests wait until there are so many."""
    return engine._line.num_places


def measure(
    engine: BaseEngine, function: Callable[..., Any], *arguments: Any, **rest: Any
) -> Any:
    """What a check makes of the models: commands ask engines of both kinds for it."""
    return engine._measure(function, *arguments, **rest)


# isolated


def served_record(say: Callable[[object], None]) -> ServedRecord:
    """An answer in an engine's process, which sends messages to the other one."""
    source = ReadySource(Prompt([1]))
    message = StartAnswer(1, source, AnswerOptions(), 0, None, "", False, False, ())
    return ServedRecord(message, say, lambda: None)


def child_process(engine: IsolatedEngine) -> ChildProcess:
    """The engine's process, as the engine has it: tests ask it, and watch what it says."""
    return engine._process


def process_alone(engine: IsolatedEngine) -> Any:
    """The same without what ends it when it is dropped."""
    return engine._process._child


def exit_code(process: Any) -> int | None:
    """Of such a process that has ended: tests look whether it was killed."""
    return process._exit_code


# chat


def workshop(chat: Chat) -> PromptWorkshop:
    """What makes the prompts of a chat: tests make some of their own, also without models."""
    engine: Any = chat._engine
    made: PromptWorkshop = engine._workshop
    return made


def turns(chat: Chat) -> list[Turn]:
    """The conversation by turns, which leave as a whole where the context is full."""
    return chat._turns


# streaming


def record_of(answer: Answer) -> AnswerRecord:
    """How far an answer is: tests wait for its first token, or for the wish to end it."""
    return answer._record


def leave_unread(answer: Answer, pieces: Sequence[Piece]) -> None:
    """Have an answer that is over keep these pieces for its reader, in a test with a fork."""
    answer._last_pieces = deque(pieces)


# speculative


def flatten_drafted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a mistake: where something is drafted, what is unlikely is too likely."""
    own = SamplerChain.distributions

    def flattened(
        chain: SamplerChain,
        rows: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int],
    ) -> list[Distribution]:
        found = own(chain, rows, tokens, draft_tokens)
        if not draft_tokens:
            return found
        flat = []
        for distribution in found:
            probs = distribution.probs**0.6
            flat.append(distribution._replace(masses=probs / probs.sum(), total=1.0))
        return flat

    monkeypatch.setattr(SamplerChain, "distributions", flattened)


def replace_truncation(
    truncate: Callable[[SpeculativeDecoder, int], None], patch: pytest.MonkeyPatch
) -> None:
    """Have all loops cut their caches otherwise: a check has to notice a wrong function."""
    patch.setattr(SpeculativeDecoder, "_truncate_caches", truncate)


def row_of(draft: DraftModel, tokens: Sequence[int]) -> Logits:
    """The row of a draft behind a text, of which it reads what it lacks."""
    return result_of(draft._rows(draft._missing(tokens), 1))[0].copy()


# llama


def replace_decode_batch(
    make: Callable[[Callable[..., Logits]], Callable[..., Logits]], patch: pytest.MonkeyPatch
) -> None:
    """Have models decode each batch by what `make` makes of the function that does: tests end
    work, or kill the process, between two batches."""
    patch.setattr(LlamaModel, "_decode_batch", make(LlamaModel._decode_batch))


def target_rows(head: LlamaHead) -> HiddenRows:
    """The target's rows that a head reads: a test compares them with another runtime's."""
    return head._target_rows


def vocabulary_pointer(vocabulary: LlamaVocabulary) -> Any:
    """libllama's pointer to the vocabulary: tests compare with its own functions."""
    return vocabulary._vocab


def library_path(library: ctypes.CDLL) -> str:
    """Where a loaded library lies: tests look into its file, and load it in other processes."""
    return library._name


# server


def hang_ups(patch: pytest.MonkeyPatch) -> list[tuple[str, int] | None]:
    """A list that grows by the address of each client whose connection a server ends: a test
    reads nothing until then."""
    addresses = []
    hang_up = _ClientConnection.hang_up

    def noted(connection: _ClientConnection) -> None:
        hang_up(connection)
        addresses.append(connection.client)

    patch.setattr(_ClientConnection, "hang_up", noted)
    return addresses


def say_ready(runner: Runner) -> None:
    """What the server says once it serves: a test hears it from one that never does."""
    runner._on_ready()


# commands


def chosen_to_launch(found: list[dict[str, Any]], model: str | None = None) -> ServerForAgent:
    """The named one of a server's models, or the first, as a program is started with it."""
    return launch._choose_model(found, model, None, 1)


def measured_speed(port: int) -> float | None:
    """How fast a program is told that the server at a port reads; None if it is not known."""
    return launch._ask_own_server(port, partial(launch._tokens_per_s, "agent"))


def answers_at_once(model: Any) -> str:
    """What serve says of how many questions a model answers at once."""
    return _parallel_in_words(model)


def chat_history() -> Any:
    """What a chat on a terminal remembers of typed lines: no terminal is there."""
    return _history()


# presets


def used_file() -> Path:
    """The file with the paths of models that were opened: tests put a pipe in its place."""
    return _used_paths_file()


def used_files() -> list[str]:
    """The paths in it."""
    return _used_paths()


def calls_under_way(server: Any) -> set[object]:
    """The calls of MCP servers' tools that a server makes now."""
    return set(server._service.calls)
