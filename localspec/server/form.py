"""The base of all protocols: how a request is read, its answer written, its cost told."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.server.answering import Event, Finished, Service
from localspec.server.encoding import EVENTS, sse_event
from localspec.server.event_loop import in_thread
from localspec.server.fields import Fields
from localspec.server.question import Question
from localspec.server.refusal import RequestError, openai_error
from localspec.server.served_models import ServedModel
from localspec.speculative.metrics import Stats, why_mostly_off
from localspec.speculative.policy_api import ProposerKind
from localspec.streaming.reply import Reply


class Form(abc.ABC):
    """A request for an answer, and the answer, in one protocol.

    content_type: of a stream. Raises RequestError and OptionError for a wrong request.
    """

    content_type: ClassVar[str] = EVENTS

    @abc.abstractmethod
    def __init__(self, fields: Fields) -> None:
        self.question: Question

    def begin(self, model: ServedModel) -> None:
        """Take note of the model that answers. Called before the methods below."""
        self._model = model

    @abc.abstractmethod
    def body(self, finished: Sequence[Finished]) -> Any:
        """The JSON of an answer that is not streamed."""

    @abc.abstractmethod
    def text_for(self, event: Event) -> str:
        """The text of an event in a stream; "" for none."""

    def end(self, finished: Sequence[Finished]) -> str:
        """The end of a stream behind its last answer; in some protocols nothing."""
        return ""

    def failure(self, error: RequestError) -> str:
        """The end of a stream whose answer failed; in OpenAI's shape, which most have."""
        return sse_event(openai_error(error))


# Gives the JSON for a request that needs no answer of a model. Raises RequestError, and what
# loading raises.
Aside = Callable[[Service], Awaitable[Any]]
EngineCall = Callable[[IsolatedEngine], Any]


def engine_aside(read: Callable[[Fields], EngineCall], fields: Fields) -> Aside:
    """A request whose result the engine computes, without a decode.

    read: makes a function of the fields, which is called in a thread of its own.
    """
    name, compute = fields.text("model"), read(fields)

    async def result(service: Service) -> Any:
        async with service.opened(name) as engine:
            return await in_thread(partial(compute, engine))

    return result


RequestReader = Callable[[Fields], Form | Aside]


def usage_of(
    finished: Sequence[Finished], num_answers: int = 1, *, has_prediction: bool = False
) -> dict[str, Any]:
    """The tokens of all answers in OpenAI's fields; a prompt with several counts once."""
    stats = [each.reply.stats for each in finished]
    firsts = stats[::num_answers]
    num_read = sum(each.prompt_tokens for each in firsts)
    num_said = sum(each.completion_tokens for each in stats)
    lookup = ProposerKind.LOOKUP
    kept = sum(each.accepted_per_proposer.get(lookup, 0) for each in stats)
    proposed = sum(each.drafted_per_proposer.get(lookup, 0) for each in stats)
    return {
        "prompt_tokens": num_read,
        "completion_tokens": num_said,
        "total_tokens": num_read + num_said,
        "prompt_tokens_details": {
            "cached_tokens": sum(each.cached_prompt_tokens for each in firsts)
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(each.reply.num_thought_tokens for each in finished),
            "accepted_prediction_tokens": kept if has_prediction else 0,
            "rejected_prediction_tokens": proposed - kept if has_prediction else 0,
        },
    }


def own_fields(reply: Reply) -> dict[str, Any]:
    """Fields that no protocol has: timings, and the parts of a schema that were not kept to."""
    told: dict[str, Any] = {"timings": _timings_of(reply.stats)}
    if reply.not_kept:
        told["not_kept"] = list(reply.not_kept)
    return told


def _timings_of(stats: Stats) -> dict[str, Any]:
    """Timings in llama-server's fields. draft_off: why most steps had no draft, or None."""
    num_read = stats.prompt_tokens - stats.cached_prompt_tokens
    prompt_s, decode_s = stats.time_to_first_token_s, stats.decode_time_s
    return {
        "cache_n": stats.cached_prompt_tokens,
        "prompt_n": num_read,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": _ratio(1000 * prompt_s, num_read),
        "prompt_per_second": _ratio(num_read, prompt_s),
        "predicted_n": stats.completion_tokens,
        "predicted_ms": 1000 * decode_s,
        "predicted_per_token_ms": _ratio(1000 * decode_s, stats.decoded_tokens),
        "predicted_per_second": _ratio(stats.decoded_tokens, decode_s),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted,
        "draft_off": why_mostly_off(stats),
    }


def _ratio(amount: float, by: float) -> float:
    return amount / by if by else 0.0
