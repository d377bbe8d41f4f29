"""The errors that localspec raises on purpose: `LocalspecError`s.

Each has a message (what is wrong, with the values) and a hint (what to do next). Both survive
pickle and copy, for example on the way from another process.

    LocalspecError
    ├─ OptionError             also a ValueError
    │  ├─ UnknownKeywordError  also a TypeError
    │  ├─ ConstraintError
    │  ├─ ModelNotFoundError   also a ModelFileError
    │  └─ UnknownPresetError   also a PresetError
    ├─ ParseError              also a ValueError
    ├─ ModelFileError
    ├─ MemoryLimitError
    ├─ PairError
    ├─ PresetError
    ├─ DownloadError
    ├─ TemplateError
    │  └─ TemplateLimitError
    ├─ ContextError
    ├─ SessionError
    ├─ DecodeError
    │  └─ Interrupted
    ├─ CacheError
    ├─ EngineError
    │  ├─ BusyError
    │  ├─ ClosedError
    │  ├─ RpcError
    │  ├─ CrashedError
    │  └─ ForkedError
    └─ ToolServerError
"""

from __future__ import annotations

import copyreg
import itertools
import math
from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

# Errors of reading a file of localspec's that is damaged, or is another kind of file.
DAMAGES = (
    OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError
)  # fmt: skip
_LONGEST_MEANT = 200  # characters of a name that may be mistyped
_Item = TypeVar("_Item")


class LocalspecError(Exception):
    """Base of all localspec errors. `str(error)` is the message; `hint` may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.__notes__ = [hint]  # shown in tracebacks from Python 3.11 on

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilt from its attributes, since a subclass may have other arguments."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class OptionError(LocalspecError, ValueError):
    """A value outside its range."""


class UnknownKeywordError(OptionError, TypeError):
    """A keyword that the function does not take."""


class ConstraintError(OptionError):
    """A schema, regex or grammar that cannot be enforced: unknown, too large, or a dead end."""


class ParseError(LocalspecError, ValueError):
    """An answer that fits the JSON schema of a class, and that the class refuses."""


def require_unicode(what: str, text: str, error: type[OptionError] = OptionError) -> None:
    """Raise the error if a text has half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as found:
        raise error(
            f"{what} has half of a surrogate pair at character {found.start}: "
            f"{text[max(found.start - 20, 0) : found.start + 1]!r}",
            "Give both halves, or none: the text was cut or decoded wrongly.",
        ) from found


class ModelFileError(LocalspecError):
    """A path without a model that can be run."""


class ModelNotFoundError(ModelFileError, OptionError):
    """There is no file at the path of a model."""


class MemoryLimitError(LocalspecError):
    """The models need more memory than this machine has."""


class PairError(LocalspecError):
    """Target and draft do not fit together."""


class PresetError(LocalspecError):
    """An unknown or malformed preset, or one whose files are not on this machine."""


class UnknownPresetError(PresetError, OptionError):
    """No preset, alias or file has that name."""


class DownloadError(LocalspecError):
    """A file could not be downloaded, or its content is wrong."""


class TemplateError(LocalspecError):
    """A chat template is missing or broken, or writes too long a prompt."""


class TemplateLimitError(TemplateError):
    """A chat template writes too long a prompt: fewer messages may help."""


class ContextError(LocalspecError):
    """More tokens than the context holds.

    Args:
        message: The message.
        hint: The hint.
        num_tokens: The tokens of the prompt; None if it was too long to be counted.
        context_length: The tokens that the context holds; None if the limit is another one.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        num_tokens: int | None = None,
        context_length: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.num_tokens = num_tokens
        self.context_length = context_length


class SessionError(LocalspecError):
    """A conversation on disk cannot be read or written."""


class DecodeError(LocalspecError):
    """libllama refused or failed a decode; the cache was cut back to its whole part."""


class Interrupted(DecodeError):
    """A decode, or making a prompt, was cancelled from another thread or by Ctrl-C."""


class CacheError(LocalspecError):
    """The KV cache cannot be cut back to the wanted length."""


class EngineError(LocalspecError):
    """An engine cannot do this now."""


class BusyError(EngineError):
    """The engine is producing another answer; ask again when that has ended."""


class ClosedError(EngineError):
    """The engine was closed, or is being closed."""


class RpcError(EngineError):
    """A server of llama.cpp's RPC backend does not answer, or answers wrongly."""


class CrashedError(EngineError):
    """The process of an isolated engine ended; the next question starts it again."""


class ToolServerError(LocalspecError):
    """An MCP server could not be started, has ended, or did not answer."""


class ForkedError(EngineError):
    """The engine belongs to the process that this one was forked from."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The beginning of a hint about an unknown name: names that may be meant, or ""."""
    import difflib

    if len(name) > _LONGEST_MEANT:
        return ""
    known = list(names)
    longer = []
    if name:
        longer = [other for other in known if other.startswith(name)]
    near = longer[:3] or difflib.get_close_matches(name, known, n=1)
    if near:
        return f"Perhaps {' or '.join(near)}? "
    return ""


def is_whole(value: object, lowest: int, highest: float = math.inf) -> TypeGuard[int]:
    """Whether a setting is a whole number within bounds. True and False are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return lowest <= value <= highest


def at_most(most: int, given: Iterable[_Item], what: str) -> list[_Item]:
    """The items as a list. Of an endless iterable, only one item too many is read.

    Args:
        most: The limit.
        given: The items.
        what: The items in words, in the plural.

    Raises:
        OptionError: There are more than `most`.
    """
    found = list(itertools.islice(given, most + 1))
    if len(found) > most:
        raise OptionError(f"there are more than {most} {what}", "Give fewer.")
    return found
