"""The messages between an `IsolatedEngine` and its process.

A comment before each group says who sends it. A `number` names a request, and comes back with
every message about the request; 0 is the load.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.record import PromptFacts, PromptSource, Reading
from localspec.streaming.reply import Ending, Piece

if TYPE_CHECKING:
    from localspec.chat.prompt_source import MessagesSource
    from localspec.engine.embedder import Embedder
    from localspec.engine.engine import Engine
    from localspec.pictures.picture import Picture


# To the process, about answers. They are handled at once, in their order.


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """Make the prompt of an answer that is admitted, and produce the answer."""

    number: int

    source: PromptSource
    """Makes the prompt."""

    options: AnswerOptions

    turn_number: int
    """As in `AnswerRecord`, like `client`, `finds_its_text` and `sends_prompt`."""

    conversation: int | None
    """The number of its conversation; None without one."""

    client: str
    finds_its_text: bool
    sends_prompt: bool

    gone_conversations: Sequence[int]
    """The numbers of conversations that were freed since the last answer."""


@dataclass(frozen=True, slots=True)
class ReadOn:
    """The reader of an answer has read more pieces."""

    number: int

    num_pieces: int
    """The pieces that were read."""


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """End an answer after the pieces that were read."""

    number: int

    num_tokens: int
    """The tokens that were read."""

    num_pieces: int
    """The pieces that were read."""


# To the process, about other work.


@dataclass(frozen=True, slots=True)
class Prepare:
    """In idle time, decode the tokens with which a conversation's next prompt begins."""

    number: int
    source: PromptSource
    conversation: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Call a function that measures, or checks, with the engine as its first argument."""

    number: int
    function: Callable[..., Any]

    arguments: tuple[Any, ...]
    """Its further arguments."""

    keywords: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndMeasure:
    """End a function that measures."""

    number: int


@dataclass(frozen=True, slots=True)
class EndIdleWork:
    """End idle work, also idle work that was asked for and has not begun."""


@dataclass(frozen=True, slots=True)
class KeepOnDisk:
    """In idle time, write the caches that the disk lacks."""


@dataclass(frozen=True, slots=True)
class SaveCaches:
    """Save a conversation's caches to a file."""

    number: int
    conversation: int
    path: Path


@dataclass(frozen=True, slots=True)
class LoadCaches:
    """Load a conversation's caches from a file."""

    number: int
    conversation: int
    path: Path


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer a question while other work continues."""

    number: int
    question: EngineQuestion | EmbedderQuestion


class EngineQuestion(abc.ABC):
    """A question, or a short task, for an engine."""

    @abc.abstractmethod
    def answer(self, engine: Engine) -> Any:
        """The answer. Raises what the engine raises."""


class EmbedderQuestion(abc.ABC):
    """A question for an embedder."""

    @abc.abstractmethod
    def answer(self, embedder: Embedder) -> Any:
        """The answer. Raises what the embedder raises."""


@dataclass(frozen=True, slots=True)
class Tokenize(EngineQuestion):
    """The tokens of a text: see `Vocabulary.tokenize`."""

    text: str
    parse_special: bool
    after: int | None

    def answer(self, engine: Engine) -> list[int]:
        """The tokens."""
        return engine.vocabulary.tokenize(
            self.text,
            parse_special=self.parse_special,
            after=self.after,
        )


@dataclass(frozen=True, slots=True)
class Detokenize(EngineQuestion):
    """The text of tokens: see `Vocabulary.detokenize`."""

    tokens: Sequence[int]
    special: bool

    def answer(self, engine: Engine) -> str:
        """The text."""
        return engine.vocabulary.detokenize(self.tokens, special=self.special)


@dataclass(frozen=True, slots=True)
class TokenPiece(EngineQuestion):
    """The bytes of a token: see `Vocabulary.piece`."""

    token: int

    def answer(self, engine: Engine) -> bytes:
        """The bytes."""
        return engine.vocabulary.piece(self.token)


@dataclass(frozen=True, slots=True)
class TokenText(EngineQuestion):
    """The vocabulary's entry for a token."""

    token: int

    def answer(self, engine: Engine) -> str:
        """The entry."""
        return engine.vocabulary.text(self.token)


@dataclass(frozen=True, slots=True)
class ControlTexts(EngineQuestion):
    """Texts that name control tokens."""

    def answer(self, engine: Engine) -> list[str]:
        """The texts."""
        return engine.vocabulary.control_texts()


@dataclass(frozen=True, slots=True)
class IsControl(EngineQuestion):
    """Whether a token is a control token."""

    token: int

    def answer(self, engine: Engine) -> bool:
        """Whether it is."""
        return engine.vocabulary.is_control(self.token)


@dataclass(frozen=True, slots=True)
class MemoryTaken(EngineQuestion):
    """The memory that the engine takes."""

    def answer(self, engine: Engine) -> Any:
        """An `EngineMemory`."""
        return engine.memory()


@dataclass(frozen=True, slots=True)
class Remember(EngineQuestion):
    """Add a text from which answers that repeat it are drafted."""

    text: str | Sequence[int]

    def answer(self, engine: Engine) -> None:
        """Add the text."""
        engine.remember(self.text)


@dataclass(frozen=True, slots=True)
class FreeKept(EngineQuestion):
    """Free the copies of waiting conversations' caches."""

    def answer(self, engine: Engine) -> None:
        """Free them."""
        engine.free_kept()


@dataclass(frozen=True, slots=True)
class SetScales(EngineQuestion):
    """Set the default scales of the target's adapters."""

    scales: tuple[float, ...]

    def answer(self, engine: Engine) -> None:
        """Set them."""
        engine.adapter_scales = self.scales


@dataclass(frozen=True, slots=True)
class PictureCells(EngineQuestion):
    """A picture's tokens: see `Vision.cells`."""

    picture: Picture

    def answer(self, engine: Engine) -> list[int]:
        """The tokens."""
        assert engine.vision is not None
        return engine.vision.cells(self.picture)


@dataclass(frozen=True, slots=True)
class MakePrompt(EngineQuestion):
    """A prompt, for a caller that wants no answer."""

    source: PromptSource

    def answer(self, engine: Engine) -> Any:
        """A `MadePrompt`."""
        return engine._make_prompt(self.source)


@dataclass(frozen=True, slots=True)
class PromptText(EngineQuestion):
    """A prompt as the model's template writes it."""

    source: MessagesSource

    opens_answer: bool
    """Whether the text ends with the tokens that open the next answer."""

    def answer(self, engine: Engine) -> str:
        """The text."""
        return engine._prompt_text(self.source, opens_answer=self.opens_answer)


@dataclass(frozen=True, slots=True)
class Embed(EmbedderQuestion):
    """The vectors of texts."""

    texts: Sequence[Any]
    dimensions: int | None = None
    truncate: bool = False

    def answer(self, embedder: Embedder) -> Any:
        """An `Embedded`."""
        return embedder.embed(self.texts, dimensions=self.dimensions, truncate=self.truncate)


@dataclass(frozen=True, slots=True)
class Rank(EmbedderQuestion):
    """Scores of how well documents fit a query."""

    query: str
    documents: Sequence[str]
    truncate: bool = False

    def answer(self, embedder: Embedder) -> Any:
        """An `Embedded`."""
        return embedder.rank(self.query, self.documents, truncate=self.truncate)


# From the process, about the load.


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A share of the models is loaded, 0 to 1."""

    share: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class LastWords:
    """libllama is about to end the process, and says why."""

    text: str


# From the process, about an answer.


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The making of a prompt begins, makes progress, or has ended."""

    number: int
    """The number of the answer; 0 for a prompt without an answer."""

    is_done: bool
    """Whether it has ended."""


@dataclass(frozen=True, slots=True)
class PicturesMissing:
    """The process no longer has a picture of the answer's prompt.

    The answer has to be started again, with all of its pictures.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer has a lane. The facts have the prompt only if `sends_prompt` was set."""

    number: int
    facts: PromptFacts


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """More of the prompt is read."""

    number: int
    reading: Reading


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of the answer: those of a step, or of several steps if these are short."""

    number: int
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The answer was refused, has failed, or is complete: then `error` is StopIteration."""

    number: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over. This is the last message about it."""

    number: int

    ending: Ending | None
    """None if the process does not know the answer."""


# From the process, about other requests.


@dataclass(frozen=True, slots=True)
class MeasureReport:
    """The progress of a measurement."""

    number: int

    stage: str
    """The present work, in words."""

    left_s: float | None
    """The seconds that remain; None if they are not known."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request. This is the last message about it."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The error of a request. This is the last message about it."""

    number: int
    error: Exception


# Sent by nobody: made where the `IsolatedEngine` is.


@dataclass(frozen=True, slots=True)
class Lost:
    """The process has ended: no message about the request comes any more."""


ToChild = (
    StartAnswer
    | ReadOn
    | EndAnswer
    | Prepare
    | Measure
    | EndMeasure
    | EndIdleWork
    | KeepOnDisk
    | SaveCaches
    | LoadCaches
    | Ask
)
FromChild = (
    LoadProgress
    | PicturesMissing
    | Begun
    | PromptProgress
    | Pieces
    | Stopped
    | Ended
    | MeasureReport
    | Result
    | Failed
    | Lost
)
