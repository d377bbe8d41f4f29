"""Syntax highlighting by Pygments, line by line; the text itself is unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

from localspec.cli.terminal.wrapping import Style

PLAIN_CODE = Style(color="cyan")  # if the language is missing or unknown
# Dim, not grey: some palettes have no grey.
_STYLES = (
    ((Comment,), Style(dim=True)),
    ((Keyword, Operator.Word, Name.Tag), Style(color="magenta")),
    ((String, Generic.Inserted), Style(color="green")),
    ((Number, Name.Variable), Style(color="yellow")),
    (
        (Name.Function, Name.Class, Name.Builtin, Name.Decorator, Name.Attribute),
        Style(color="cyan"),
    ),
    ((Generic.Deleted,), Style(color="red")),
)
# Whatever a line leaves open ends here: most lexers know a comment or a text of several
# lines only by its end.
_ENDS = "*/ --> ]] #> -} ''' \"\"\" `\n</script></style>\nEOF\n"
_MAX_ABOVE = 2000  # characters above a line that are looked at again


class Highlighter:
    """Highlights one block of code. language: as the block names it, or ""."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._above = ""

    def styled(self, lines: str) -> list[tuple[str, Style]]:
        """Whole lines, cut into parts of the same style."""
        if self._lexer is not None:
            try:
                runs = list(self._runs(self._lexer, lines))
            except Exception:  # a lexer may fail on any text: the code is shown without colours
                runs = []
            if "".join(text for text, _ in runs) == lines:
                return runs
            self._lexer = None
        return [(lines, PLAIN_CODE)]

    def _runs(self, lexer: Lexer, lines: str) -> Iterator[tuple[str, Style]]:
        start = len(self._above)
        text = self._above + lines
        is_open = False
        for at, kind, value in lexer.get_tokens_unprocessed(text + _ENDS):
            if at >= len(text):
                break
            is_open = kind in String or kind in Comment
            if piece := value[max(start - at, 0) : len(text) - at]:
                yield piece, _style(kind)
        self._above = text if is_open or len(text) < _MAX_ABOVE else ""


def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language) if language else None
    except ClassNotFound:
        return None


def _style(kind: Any) -> Style:
    return next(
        (style for kinds, style in _STYLES if any(kind in one for one in kinds)), Style()
    )
