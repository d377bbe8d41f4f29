"""Text for the terminal: safe characters, colours by provenance, statistics, errors, sizes."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence

import click

from localspec.cli.flags import Parsed, usual_flag
from localspec.cli.standard_streams import is_terminal, num_columns, use_colour
from localspec.errors import LocalspecError
from localspec.speculative.metrics import Provenance, Stats, why_mostly_off
from localspec.speculative.policy_api import ProposerKind

_STATUS_COLUMNS = 100  # of the window, at most
# An answer whose decodes take so many times as long as the fastest ones is said to be slower;
# below that it may be noise, or a processor that is warm.
_CLEARLY_SLOWER = 1.5
# Where a token came from: its colour, its brackets where there are no colours, and in words.
_MARKS = {
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
# Keywords that errors name, for which commands have an option.
_KEYWORDS = (
    *(
        "context_length",
        "draft_tokens",
        "flash_attention",
        "head",
        "device",
        "local_dir",
        "main_gpu",
    ),
    *("mmproj", "num_gpu_layers", "proposer", "rpc", "target", "template", "tensor_split"),
)
_WHOLE_FLAGS = {
    "draft_tokens=0": "--no-draft",
    "force=True": "--force",
    "think=False": "--no-think",
    "engine.generate_raw()": "localspec generate --raw",
}
_ARGUMENT = re.compile(
    "|".join(map(re.escape, _WHOLE_FLAGS))
    + rf"|\b(?P<name>{'|'.join(_KEYWORDS)})=(?P<value>…|\w+|\"\w+\")"
)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)b?", re.IGNORECASE)


def printable(text: str) -> str:
    """The text with control characters and direction marks made visible."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    # Cc: controls. Bidi embeddings, overrides and isolates reorder the text around them.
    if unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    ):  # fmt: skip
        return f"<U+{code:04X}>"
    return character


def titled(paragraphs: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Paragraphs for stdout, each with its title in front of its first line."""
    width = max(11, *(len(title) + 1 for title, _ in paragraphs))
    lines = [
        f"{'' if index else title:<{width}}{line}"
        for title, texts in paragraphs
        for index, line in enumerate(fitted("\n".join(texts), indent=width).split("\n"))
        if texts
    ]
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
    if not is_terminal(sys.stderr if err else sys.stdout):
        return text
    # Imported here: a pipe does not need the library that knows how wide characters are.
    from localspec.cli.terminal.wrapping import wrapped

    return wrapped(text, num_columns(err=err) - indent)


def mark(text: str, provenance: Provenance) -> tuple[str, str | None]:
    """The text and a colour for where it came from; without colours it has brackets."""
    colour, opening, closing, _ = _MARKS[provenance]
    if not text or (is_terminal(sys.stdout) and use_colour() is None):
        return text, colour
    return f"{opening}{text}{closing}", None


def show_legend() -> None:
    """Print the meaning of the colours or brackets on stderr."""
    for provenance, (_, _, _, meaning) in _MARKS.items():
        text, colour = mark(provenance.value, provenance)
        marked = click.style(text, fg=colour) if colour else text
        click.echo(f"{marked}  {meaning}", err=True, color=use_colour())


def status_line(stats: Stats, context_length: int, columns: int) -> str:
    """Summarise an answer in one line: speed, drafting, context.

    It has as many parts as fit into the window, and into 100 columns. A part that does not fit
    lacks what follows its colon, or it is left out, with those after it.
    """
    drafted = f" ({stats.num_accepted} drafted)" if stats.num_draft_tokens else ""
    used = (stats.prompt_tokens + stats.completion_tokens) / context_length
    reason = (why_mostly_off(stats) or "").partition(":")[0]
    rate = stats.tokens_per_s
    exact = f"exact ({stats.exact_steps})" if stats.exact_steps else "exact"
    # What matters most comes first.
    parts = (
        "" if rate is None else f"{rate:.0f} tokens/s",
        _slowdown_of(stats),
        f"context {used:.0%} full",
        reason,
        _threads_of(stats),
        exact if stats.exact else "",
    )
    line = f"{counted(stats.completion_tokens, 'token')}{drafted}"
    width = min(_STATUS_COLUMNS, columns - 1)
    for part in filter(None, parts):
        shorter = part.partition(":")[0]
        if len(f"{line} · {shorter}") > width:
            break
        is_whole = len(f"{line} · {part}") <= width
        line += f" · {part if is_whole else shorter}"
    return line


def _slowdown_of(stats: Stats) -> str | None:
    """By how much the answer was slower than others here, if that is more than noise."""
    slowdown = None if stats.threads is None else stats.threads.slowdown
    if slowdown is None or slowdown < _CLEARLY_SLOWER:
        return None
    times = f"{slowdown:.0f}" if slowdown >= 10 else f"{slowdown:.1f}".removesuffix(".0")
    return f"{times} times slower than measured before: is the machine busy?"


def _threads_of(stats: Stats) -> str | None:
    """The number of threads of most steps and the reason, if more were usable."""
    if stats.threads is None or not stats.steps_per_threads:
        return None
    usable = stats.threads.num_usable
    counts = stats.steps_per_threads
    count = max(counts, key=lambda count: counts[count])
    was_busy = stats.threads.is_busy or stats.threads.num_threads > count
    if count >= usable or 2 * counts[count] <= sum(counts.values()):
        return None
    why = "the machine is busy" if was_busy else "more are no faster"
    return f"{count} of {usable} threads: {why}"


def stats_lines(stats: Stats, context_length: int) -> list[str]:
    """All statistics of an answer."""
    used = stats.prompt_tokens + stats.completion_tokens
    read, written = (
        "" if rate is None else f" at {rate:.1f} tokens/s"
        for rate in (stats.prompt_tokens_per_s, stats.tokens_per_s)
    )
    lines = [
        f"prompt: {counted(stats.prompt_tokens, 'token')}, {stats.cached_prompt_tokens} of "
        f"them cached, the rest read{read}; first token after "
        f"{stats.time_to_first_token_s:.2f} s",
        f"answer: {counted(stats.completion_tokens, 'token')}{written}, "
        f"{stats.mean_acceptance_length:.2f} per target decode",
        f"drafted {stats.num_draft_tokens}, accepted {stats.num_accepted} "
        f"({stats.acceptance_rate:.0%}); recovered {stats.num_recovered}, "
        f"bonus {stats.num_bonus}, plain {stats.num_plain}",
    ]
    if stats.steps_per_proposer:
        steps = (
            f"{PROPOSER_NAMES[kind]} in {n}" for kind, n in stats.steps_per_proposer.items()
        )
        lines.append(f"steps by proposer: {', '.join(steps)} of {stats.num_steps}")
    positions = zip(stats.accepted_per_position, stats.drafted_per_position, strict=True)
    shares = [f"{accepted / drafted:.0%}" for accepted, drafted in positions if drafted]
    if shares:
        lines.append(f"accepted by position: {', '.join(shares)}")
    lines.append(
        f"seconds: draft {stats.draft_time_s:.2f}, target {stats.target_time_s:.2f}, "
        f"sampler {stats.sampler_time_s:.2f}, total {stats.total_time_s:.2f}"
    )
    lines += filter(None, (_slowdown_of(stats), _threads_of(stats)))
    if (outlook := stats.outlook) is not None:
        edge = outlook.break_even
        pays = "never pays" if edge is None else f"pays above {edge:.0%}"
        lines.append(
            f"expected acceptance of the next draft token: {outlook.acceptance:.0%}; "
            f"drafting {pays} here"
        )
    if reason := why_mostly_off(stats):
        lines.append(reason)
    if stats.exact:
        bounds = f"; {stats.exact_steps}" if stats.exact_steps else ""
        same = "the same to the bit with any draft and any number of threads"
        lines.append(f"exact: {same}{bounds}")
    return [*lines, f"context: {used} of {context_length} tokens"]


def error_lines(error: LocalspecError) -> str:
    """An error and its hint, for stderr."""
    lines = [f"Error: {in_flags(str(error))}"]
    if error.hint:
        lines.append(f"Hint: {in_flags(error.hint)}")
    return fitted("\n".join(lines), err=True)


def in_flags(text: str) -> str:
    """The text of an error, with flags of commands in place of Python's keywords."""
    return _ARGUMENT.sub(_flag, text)


def _flag(argument: re.Match[str]) -> str:
    if argument[0] in _WHOLE_FLAGS:
        return _WHOLE_FLAGS[argument[0]]
    flag = usual_flag(argument["name"])
    value = argument["value"].strip('"')
    if value == "…":
        return flag
    return f"{flag} {value}"


def counted(number: int, noun: str) -> str:
    """1 round, 2 rounds."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def excerpt(text: str, length: int) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    return f"{line[:length]}…"


def readable_bytes(num_bytes: int | None) -> str:
    """A size in decimal units: 4.7 GB."""
    from rich.filesize import decimal  # --help needs no rich

    if num_bytes is None:
        return "unknown"
    return decimal(num_bytes)


def pays_from(acceptance: float) -> str:
    """From which acceptance drafting pays, 0 to 1, as the end of a sentence."""
    if acceptance < 0.005:
        return "pays however few of its tokens are accepted"
    return f"pays if at least {acceptance:.0%} of its tokens are accepted"


def _num_bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    return int(float(found[1]) * 1000 ** " kmgt".index(found[2].lower() or " "))


SIZE = Parsed(_num_bytes, "is not a size; give one such as 8GB, 500MB or 0")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: 0:07, 12:30, 1:00:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """For sentences: 40 s, 12 minutes, 3.5 hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
