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

# Errors that reading raises if a file of localspec is damaged, or is another kind of file.
DAMAGES = (
    OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError
)  # fmt: skip
_LONGEST_NAME = 200  # characters; a longer text is no mistyped name
_MOST_SUGGESTED = 3  # names in a hint
_SHOWN_BEFORE = 20  # characters before a fault in a text that its error shows
_Item = TypeVar("_Item")


class LocalspecError(Exception):
    """Base of all localspec errors. `str(error)` is the message; `hint` may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.__notes__ = [hint]  # shown in tracebacks from Python 3.11 on

    def __reduce__(self) -> tuple[Any, ...]:
        """Have copies made from the attributes, since constructors of subclasses differ."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class OptionError(LocalspecError, ValueError):
    """A value outside its range."""


class UnknownKeywordError(OptionError, TypeError):
    """A keyword that the function does not take."""


class ConstraintError(OptionError):
    """A schema, regex or grammar that cannot be enforced: invalid, too large, or a dead end."""


class ParseError(LocalspecError, ValueError):
    """An answer that is not JSON, or that the class which was asked for refuses."""


def require_unicode(what: str, text: str, error: type[OptionError] = OptionError) -> None:
    """Raise an error if a text has half of a surrogate pair, which cannot be encoded.

    Args:
        what: The text in words, for the error.
        text: The text.
        error: The class of the error.
    """
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        begin = max(fault.start - _SHOWN_BEFORE, 0)
        raise error(
            f"{what} has half of a surrogate pair at character {fault.start}: "
            f"{text[begin : fault.start + 1]!r}",
            "Give both halves, or none: the text was cut or decoded wrongly.",
        ) from fault


class ModelFileError(LocalspecError):
    """The file at a path is no model that can be run."""


class ModelNotFoundError(ModelFileError, OptionError):
    """There is no file at the path of a model."""


class MemoryLimitError(LocalspecError):
    """The models need more memory than this machine has."""


class PairError(LocalspecError):
    """A draft, head, projector or adapter does not fit the target."""


class PresetError(LocalspecError):
    """An unknown or malformed preset, or one whose files are not on this machine."""


class UnknownPresetError(PresetError, OptionError):
    """No preset, alias or file has that name."""


class DownloadError(LocalspecError):
    """A file could not be downloaded, or its content is wrong."""


class TemplateError(LocalspecError):
    """A chat template is missing or broken, refuses messages, or writes too long a prompt."""


class TemplateLimitError(TemplateError):
    """A chat template writes too long a prompt: fewer messages may help."""


class ContextError(LocalspecError):
    """More tokens than the context holds.

    Args:
        message: What is wrong.
        hint: What to do next.
        num_tokens: The tokens of the prompt; None if it was too long to be counted.
        context_length: The tokens that the context holds; None if another limit was exceeded.
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
    """libllama refused a decode, or failed in it. Its tokens were removed from the cache."""


class Interrupted(DecodeError):
    """A decode, or making a prompt, was cancelled from another thread or by Ctrl-C."""


class CacheError(LocalspecError):
    """A cache cannot be cut back, copied or restored, or is too large to be kept."""


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
    """The beginning of a hint about an unknown name: known names that the user may have meant.

    Empty if no known name is similar.

    Args:
        name: The unknown name.
        names: The known names.
    """
    import difflib

    if len(name) > _LONGEST_NAME:
        return ""
    known = list(names)
    suggested: list[str] = []
    if name:
        suggested = [other for other in known if other.startswith(name)]
    if not suggested:
        suggested = difflib.get_close_matches(name, known, n=1)
    if not suggested:
        return ""
    return f"Perhaps {' or '.join(suggested[:_MOST_SUGGESTED])}? "


def is_whole(value: object, lowest: int, highest: float = math.inf) -> TypeGuard[int]:
    """Whether a value is a whole number from `lowest` to `highest`; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return lowest <= value <= highest


def at_most(most: int, items: Iterable[_Item], what: str) -> list[_Item]:
    """The items as a list, if there are not more than `most`.

    Even of an endless iterable, only `most` + 1 items are read.

    Args:
        most: The limit.
        items: The items.
        what: The items in words, in the plural, for the error.

    Raises:
        OptionError: If there are more.
    """
    listed = list(itertools.islice(items, most + 1))
    if len(listed) > most:
        raise OptionError(f"there are more than {most} {what}", "Give fewer.")
    return listed
