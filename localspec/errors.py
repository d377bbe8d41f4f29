"""Everything localspec raises on purpose.

    LocalspecError
    ├── OptionError        a value outside its range (also a ValueError)
    │   ├── UnknownKeywordError  a keyword that there is not (also a TypeError)
    │   └── ConstraintError    what an answer is to fit cannot be kept to
    ├── ModelFileError     a path without a model that can be run
    │   └── ModelNotFoundError  there is no file (also an OptionError)
    ├── MemoryLimitError   models that need more memory than there is
    ├── PairError          target and draft do not fit together
    ├── PresetError        an unknown or malformed preset, or files not there yet
    │   └── UnknownPresetError  nothing has that name (also an OptionError)
    ├── DownloadError      files could not be fetched, or not what they should be
    ├── TemplateError      a chat template is missing or broken
    │   └── TemplateLimitError  it does more work than any template may
    ├── ContextError       more tokens than the context holds
    ├── SessionError       a conversation on disk that cannot be read or written
    ├── DecodeError        libllama refused or failed a decode
    │   └── Interrupted    the decode, or making the prompt, was cancelled
    ├── CacheError         the KV cache cannot be cut back as asked
    └── EngineError        an engine that cannot do what it is asked for now
        ├── BusyError      it is producing another answer
        ├── ClosedError    it was closed, or is being closed
        ├── RpcError       an RPC server that is to hold a part of it cannot be used
        ├── CrashedError   the process of an isolated one ended: ask again
        └── ForkedError    it belongs to the process that this one was forked from

Each carries a message (what is wrong, with the values) and a hint (what to do next), and is the
same after a way through pickle or copy, as out of another process.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class LocalspecError(Exception):
    """Base of all localspec errors. `str(error)` is the message; `hint` may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from what it holds, as the arguments of a subclass may be others."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class OptionError(LocalspecError, ValueError):
    """A value outside its range."""


class UnknownKeywordError(OptionError, TypeError):
    """A keyword that the function does not take."""


class ConstraintError(OptionError):
    """A schema, regex or grammar that cannot be enforced: unknown, too large, or a dead end."""


def require_unicode(what: str, text: str, error: type[OptionError] = OptionError) -> None:
    """Raise the error where a text has half of a surrogate pair, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as found:
        raise error(
            f"{what} has half of a surrogate pair at character {found.start}: "
            f"{text[max(found.start - 20, 0) : found.start + 1]!r}",
            "Give both halves, or none: it comes of text that was cut or decoded wrongly.",
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
    """A chat template is missing, broken, or exceeds its bounds."""


class TemplateLimitError(TemplateError):
    """A chat template exceeds its bounds of work: fewer messages may help."""


class ContextError(LocalspecError):
    """More tokens than the context holds.

    num_tokens: of the prompt, None where it was too long to be counted. context_length: how
    many tokens the context holds, None where the limit is another one.
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
    """The KV cache cannot be cut back as asked."""


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


class ForkedError(EngineError):
    """The engine belongs to the process that this one was forked from."""


def perhaps(name: str, names: Iterable[str]) -> str:
    """The begin of a hint about an unknown name: those that may be meant, or nothing."""
    import difflib

    known = list(names)
    longer = [each for each in known if name and each.startswith(name)]
    near = longer[:3] or difflib.get_close_matches(name, known, n=1)
    return f"Perhaps {' or '.join(near)}? " if near else ""


def check_keywords(
    given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise UnknownKeywordError, with the nearest one, for a keyword that is not known.

    elsewhere: others that a person may mean, with what is to be said of them.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = (elsewhere or {}).get(name) or perhaps(name, known).strip()
            raise UnknownKeywordError(
                f"unknown option {name!r}", hint or f"Known are {', '.join(known)}."
            )


def known_keywords(
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let a function refuse other keywords than its own as `check_keywords` does."""

    def checking(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
            check_keywords(keywords, known, elsewhere)
            return function(*arguments, **keywords)

        return checked

    return checking
