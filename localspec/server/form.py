"""The base classes of all protocols: how a request is read and its answer written."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
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


class Aside(abc.ABC):
    """A request for which no answer is generated.

    Raises RequestError and OptionError for a request that is wrong.
    """

    def __init__(self, fields: Fields) -> None:
        self.model_name = fields.text("model")

    @abc.abstractmethod
    async def result(self, service: Service) -> Any:
        """The JSON that the client gets. Raises RequestError, and what loading raises."""


EngineCall = Callable[[IsolatedEngine], Any]


class EngineAside(Aside):
    """A request whose result the engine computes, without a decode.

    read: makes a function of the fields, which is called in a thread of its own.
    """

    def __init__(self, read: Callable[[Fields], EngineCall], fields: Fields) -> None:
        super().__init__(fields)
        self._compute = read(fields)

    async def result(self, service: Service) -> Any:
        async with service.opened(self.model_name) as engine:
            return await in_thread(partial(self._compute, engine))


RequestReader = Callable[[Fields], Form | Aside]
