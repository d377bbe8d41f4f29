"""Text for the terminal: safe characters, colours by provenance, statistics, errors, sizes."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence

import click

from localspec.cli.flags import Parsed, usual_flag
from localspec.cli.standard_streams import is_terminal, num_columns, use_colour
from localspec.errors import LocalspecError
from localspec.speculative.metrics import Provenance, Stats, why_mostly_off
from localspec.speculative.policy_api import ProposerKind

_STATUS_COLUMNS = 100  # the largest width of the status line
_TITLE_COLUMNS = 11  # the smallest width of a column of titles
# An answer counts as slow if its decodes take this many times as long as the fastest ones. A
# smaller factor may be noise, or a warm processor.
_CLEARLY_SLOWER = 1.5
# For each provenance: the colour, the brackets that replace it without colours, the meaning.
_PROVENANCE_MARKS = {
    Provenance.ACCEPTED: ("green", "", "", "drafted and accepted"),
    Provenance.RECOVERED: ("yellow", "(", ")", "in place of a rejected token"),
    Provenance.BONUS: ("cyan", "{", "}", "after a fully accepted draft"),
    Provenance.PLAIN: (None, "[", "]", "nothing was drafted"),
}
PROPOSER_NAMES = {
    ProposerKind.DRAFT: "the draft model",
    ProposerKind.HEAD: "the head",
    ProposerKind.LOOKUP: "lookup",
    ProposerKind.FORCED: "the constraint",
}
# Keywords in errors for which commands have an option.
_KEYWORDS = (
    "context_length",
    "draft_tokens",
    "flash_attention",
    "head",
    "device",
    "local_dir",
    "main_gpu",
    "mmproj",
    "num_gpu_layers",
    "proposer",
    "rpc",
    "target",
    "template",
    "tensor_split",
)
_WHOLE_FLAGS = {
    "draft_tokens=0": "--no-draft",
    "force=True": "--force",
    "think=False": "--no-think",
    "engine.generate_raw()": "localspec generate --raw",
}
# An argument in the text of an error, as Python has it.
_ARGUMENT = re.compile(
    "|".join(map(re.escape, _WHOLE_FLAGS))
    + rf"|\b(?P<name>{'|'.join(_KEYWORDS)})=(?P<value>…|\w+|\"\w+\")"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)b?", re.IGNORECASE)
_BYTES_PER_UNIT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NUM_CONTROLS = 0x20  # code points below this are control characters
_CONTROL_PICTURES = 0x2400  # from this code point on are signs for them, in their order
_ROUNDS_TO_ZERO = 0.005  # a smaller share is shown as 0%
# Bidi embeddings, overrides and isolates: they reorder the text around them.
_REORDERING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def printable(text: str) -> str:
    """The text with visible signs in place of control characters and direction marks.

    Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    """The character, or a visible sign for it if it would steer the terminal."""
    if character in "\n\t":
        return character
    code = ord(character)
    if code < _NUM_CONTROLS:
        return chr(_CONTROL_PICTURES + code)
    is_control = unicodedata.category(character) == "Cc"
    if is_control or unicodedata.bidirectional(character) in _REORDERING:
        return f"<U+{code:04X}>"
    return character


def titled(paragraphs: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Paragraphs for stdout, in a column beside their titles, wrapped to the terminal.

    Args:
        paragraphs: the title and the lines of each paragraph; one without lines is left out.
    """
    width = _TITLE_COLUMNS
    for title, _ in paragraphs:
        width = max(width, len(title) + 1)
    lines = []
    for title, paragraph in paragraphs:
        if not paragraph:
            continue
        text = fitted("\n".join(paragraph), indent=width)
        first, *more = text.split("\n")
        lines.append(f"{title:<{width}}{first}")
        for line in more:
            lines.append(" " * width + line)
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line on stderr."""
    click.echo(printable(text), err=True)


def note(text: str) -> None:
    """Print a note on stderr, dimmed to set it apart from the model's text."""
    click.echo(click.style(fitted(text, err=True), dim=True), err=True, color=use_colour())


def fitted(text: str, *, err: bool = False, indent: int = 0) -> str:
    """Printable text for stdout or stderr, wrapped to a terminal's columns less `indent`."""
    text = printable(text)
    stream = sys.stdout
    if err:
        stream = sys.stderr
    if not is_terminal(stream):
        return text
    # Imported here: a pipe does not need the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import wrapped

    return wrapped(text, num_columns(err=err) - indent)


def mark(text: str, provenance: Provenance) -> tuple[str, str | None]:
    """Mark a text by where it came from. Returns the text and its colour for stdout.

    Without colours the returned text has its provenance's brackets, and the colour is None.
    """
    colour, opening, closing, _ = _PROVENANCE_MARKS[provenance]
    has_colours = is_terminal(sys.stdout) and use_colour() is None
    if not text or has_colours:
        return text, colour
    return f"{opening}{text}{closing}", None


def show_legend() -> None:
    """Print what the colours or brackets of `mark` mean, on stderr."""
    for provenance, (_, _, _, meaning) in _PROVENANCE_MARKS.items():
        text, colour = mark(provenance.value, provenance)
        if colour:
            text = click.style(text, fg=colour)
        click.echo(f"{text}  {meaning}", err=True, color=use_colour())


def status_line(stats: Stats, context_length: int, columns: int) -> str:
    """Summarise an answer in one line: speed, drafting, context.

    The line has as many parts as fit into the window, and into 100 columns. A part that does
    not fit is cut off at its colon; if it still does not fit, it is left out, and so are the
    parts after it.

    Args:
        stats: the answer's statistics.
        context_length: the context in tokens.
        columns: the width of the window.
    """
    line = counted(stats.completion_tokens, "token")
    if stats.num_draft_tokens:
        line += f" ({stats.num_accepted} drafted)"
    width = min(_STATUS_COLUMNS, columns - 1)  # the window's last column stays free
    for part in _status_parts(stats, context_length):
        fact, _, _ = part.partition(":")
        longer = f"{line} · {part}"
        shorter = f"{line} · {fact}"
        if len(longer) <= width:
            line = longer
        elif len(shorter) <= width:
            line = shorter
        else:
            break
    return line


def _status_parts(stats: Stats, context_length: int) -> Iterator[str]:
    """Facts about an answer, the most important first."""
    if stats.tokens_per_s is not None:
        yield f"{stats.tokens_per_s:.0f} tokens/s"
    slowdown = _slowdown_of(stats)
    if slowdown is not None:
        yield slowdown
    num_used = stats.prompt_tokens + stats.completion_tokens
    yield f"context {num_used / context_length:.0%} full"
    why_off = why_mostly_off(stats)
    if why_off:
        fact, _, _ = why_off.partition(":")  # the reason after the colon is too long here
        yield fact
    threads = _threads_of(stats)
    if threads is not None:
        yield threads
    if stats.exact and stats.exact_steps:
        yield f"exact ({stats.exact_steps})"  # what bounds the steps, in words
    elif stats.exact:
        yield "exact"


def _slowdown_of(stats: Stats) -> str | None:
    """How many times slower the answer was than the fastest ones here, in words.

    None if it was not clearly slower, or if that is not known.
    """
    if stats.threads is None or stats.threads.slowdown is None:
        return None
    slowdown = stats.threads.slowdown
    if slowdown < _CLEARLY_SLOWER:
        return None
    factor = f"{slowdown:.1f}".removesuffix(".0")
    if slowdown >= 10:
        factor = f"{slowdown:.0f}"
    return f"{factor} times slower than measured before: is the machine busy?"


def _threads_of(stats: Stats) -> str | None:
    """The number of threads of most steps, and why it is less than all usable threads.

    None if most steps had all threads, no number had most steps, or the threads are unknown.
    """
    if stats.threads is None or not stats.steps_per_threads:
        return None
    num_usable = stats.threads.num_usable
    num_steps = stats.steps_per_threads  # by number of threads
    num_threads = max(num_steps, key=num_steps.__getitem__)
    is_majority = 2 * num_steps[num_threads] > sum(num_steps.values())
    if num_threads >= num_usable or not is_majority:
        return None
    reason = "more are no faster"
    num_at_end = stats.threads.num_threads
    if stats.threads.is_busy or num_at_end > num_threads:  # more at the end: it was busy before
        reason = "the machine is busy"
    return f"{num_threads} of {num_usable} threads: {reason}"


def stats_lines(stats: Stats, context_length: int) -> list[str]:
    """All statistics of an answer, in lines."""
    num_used = stats.prompt_tokens + stats.completion_tokens
    lines = [
        f"prompt: {counted(stats.prompt_tokens, 'token')}, {stats.cached_prompt_tokens} of "
        f"them cached, the rest read{_at_rate(stats.prompt_tokens_per_s)}; first token after "
        f"{stats.time_to_first_token_s:.2f} s",
        f"answer: {counted(stats.completion_tokens, 'token')}{_at_rate(stats.tokens_per_s)}, "
        f"{stats.mean_acceptance_length:.2f} per target decode",
        f"drafted {stats.num_draft_tokens}, accepted {stats.num_accepted} "
        f"({stats.acceptance_rate:.0%}); recovered {stats.num_recovered}, "
        f"bonus {stats.num_bonus}, plain {stats.num_plain}",
    ]
    lines += _draft_lines(stats)
    lines.append(
        f"seconds: draft {stats.draft_time_s:.2f}, target {stats.target_time_s:.2f}, "
        f"sampler {stats.sampler_time_s:.2f}, total {stats.total_time_s:.2f}"
    )
    for fact in (_slowdown_of(stats), _threads_of(stats)):
        if fact is not None:
            lines.append(fact)
    if stats.outlook is not None:
        pays = "never pays"
        if stats.outlook.break_even is not None:
            pays = f"pays above {stats.outlook.break_even:.0%}"
        lines.append(
            f"expected acceptance of the next draft token: {stats.outlook.acceptance:.0%}; "
            f"drafting {pays} here"
        )
    why_off = why_mostly_off(stats)
    if why_off:
        lines.append(why_off)
    if stats.exact:
        exact = "exact: the same to the bit with any draft and any number of threads"
        if stats.exact_steps:
            exact += f"; {stats.exact_steps}"
        lines.append(exact)
    lines.append(f"context: {num_used} of {context_length} tokens")
    return lines


def _draft_lines(stats: Stats) -> Iterator[str]:
    """The steps of each proposer, and the acceptance at each position of a draft."""
    steps = []
    for kind, number in stats.steps_per_proposer.items():
        steps.append(f"{PROPOSER_NAMES[kind]} in {number}")
    if steps:
        yield f"steps by proposer: {', '.join(steps)} of {stats.num_steps}"
    shares = []
    for position, num_drafted in enumerate(stats.drafted_per_position):
        if num_drafted:
            shares.append(f"{stats.accepted_per_position[position] / num_drafted:.0%}")
    if shares:
        yield f"accepted by position: {', '.join(shares)}"


def _at_rate(tokens_per_s: float | None) -> str:
    """A speed as the end of a sentence; "" if it is unknown."""
    if tokens_per_s is None:
        return ""
    return f" at {tokens_per_s:.1f} tokens/s"


def error_lines(error: LocalspecError) -> str:
    """An error, and its hint below it if there is one, as text for stderr."""
    lines = [f"Error: {in_flags(str(error))}"]
    if error.hint:
        lines.append(f"Hint: {in_flags(error.hint)}")
    return fitted("\n".join(lines), err=True)


def in_flags(text: str) -> str:
    """The text of an error, with flags of commands in place of Python's keyword arguments."""
    return _ARGUMENT.sub(_flag, text)


def _flag(argument: re.Match[str]) -> str:
    """The flag for a match of `_ARGUMENT`, with its value."""
    if argument[0] in _WHOLE_FLAGS:
        return _WHOLE_FLAGS[argument[0]]
    flag = usual_flag(argument["name"])
    value = argument["value"].strip('"')
    if value == "…":  # stands for any value
        return flag
    return f"{flag} {value}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 round, 2 rounds."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def excerpt(text: str, length: int) -> str:
    """The first `length` characters of a text, in one line; "…" says that there are more."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    return f"{line[:length]}…"


def readable_bytes(num_bytes: int | None) -> str:
    """A size in decimal units, such as 4.7 GB; "unknown" for None."""
    from rich.filesize import decimal  # --help needs no rich

    if num_bytes is None:
        return "unknown"
    return decimal(num_bytes)


def pays_from(acceptance: float) -> str:
    """The end of a sentence which says from which acceptance on drafting is faster.

    Args:
        acceptance: the share of draft tokens that has to be accepted, from 0 to 1.
    """
    if acceptance < _ROUNDS_TO_ZERO:
        return "pays however few of its tokens are accepted"
    return f"pays if at least {acceptance:.0%} of its tokens are accepted"


def _num_bytes(text: str) -> int:
    """The bytes that a text such as 8GB means. Raises ValueError."""
    parts = _SIZE.fullmatch(text.strip())
    if parts is None:
        raise ValueError(text)
    number = float(parts[1])
    unit = parts[2].lower()
    return int(number * _BYTES_PER_UNIT[unit])


SIZE = Parsed(_num_bytes, "is not a size; give one such as 8GB, 500MB or 0")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: 0:07, 12:30, 1:00:05."""
    all_minutes, last_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(all_minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{last_seconds:02}"
    return f"{minutes}:{last_seconds:02}"


def duration(seconds: float) -> str:
    """A time for sentences: 40 s, 12 minutes, 3.5 hours."""
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 60 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
