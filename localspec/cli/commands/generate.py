"""`localspec generate`"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.chat.attachment import Attachment, attached, pictures_in, read_attachment
from localspec.cli.answer_output import note_limits, write_answer
from localspec.cli.completers import complete_model
from localspec.cli.flags import option
from localspec.cli.help import Command
from localspec.cli.json_output import json_option, to_json, write_json
from localspec.cli.screen import note, show_legend, stats_lines
from localspec.cli.shared_options import (
    MODEL_NAMES,
    PairOptions,
    constraint_options,
    pair_options,
)
from localspec.cli.signal_handlers import cancel_on_interrupt
from localspec.cli.standard_streams import is_terminal, read_input
from localspec.presets.model_names import VARIABLE
from localspec.presets.presets import DEFAULT_PRESET

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.streaming.reply import Reply


_STDIN = Path("-")
# The names that --json has for log-probabilities of the model's own distribution, and for those
# after the samplers.
_JSON_NAMES = {
    "before": "logprob",
    "after": "logprob_after",
    "top_before": "top",
}


@click.command(cls=Command)
@click.argument("prompt", required=False)
@option(
    "model",
    flags=("-m", "--model"),
    heading="Model",
    metavar="MODEL",
    shell_complete=complete_model,
    help=f"A preset, an alias, {MODEL_NAMES}. "
    f"[default: {VARIABLE}, 'localspec models default', or {DEFAULT_PRESET}]",
)
@click.option(
    "--raw", is_flag=True, help="Continue the prompt as raw text, without a chat template."
)
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="End the answer before this text. Repeatable."
)
@json_option("object with the answer and its statistics")
@option(
    "logprobs",
    heading="Output",
    type=int,
    metavar="N",
    help="With --json: log-probabilities of every token and of the N best alternatives.",
)
@click.option(
    "-f",
    "--file",
    "--image",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A text file or an image to put before the prompt; - is stdin. Repeatable. Without a "
    "PROMPT the last file is the prompt.",
)
@option(
    "stats", heading="Output", is_flag=True, help="Print statistics of the answer to stderr."
)
@constraint_options
@pair_options
def generate(  # noqa: PLR0913  one argument for each option
    options: PairOptions,
    *,
    prompt: str | None,
    raw: bool,
    stop: tuple[str, ...],
    as_json: bool,
    logprobs: int | None,
    files: tuple[Path, ...],
    stats: bool,
    constraints: dict[str, Any],
) -> None:
    """Answer PROMPT, or the text on stdin, through the chat template.

    With both, the text on stdin goes before PROMPT, after the files of --file. The
    answer goes to stdout. Control characters are made visible; --json has the exact text.
    --raw continues the text without a template, as generate_raw does in Python.

    \b
        localspec generate "Tell me a story about an owl."
        localspec generate -m qwen3-8b "Why is the sky blue?"
        localspec generate --temperature 0 --json "What is 7 times 8?"
        localspec generate -m qwen3-8b -f notes.txt "What have I forgotten?"
        localspec generate -m gemma-3-4b --image cat.jpg "What is this?"
        localspec generate --choice yes --choice no "Is a whale a fish?"
        echo "Count to ten." | localspec generate
        tail -n 40 server.log | localspec generate -m qwen3-8b "What went wrong?"
    """
    if raw and (options.system is not None or options.template_name is not None):
        raise click.UsageError("--raw cannot be combined with --system or --chat-template.")
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs needs --json.")
    attachments, question = _split_prompt(prompt, files)
    if raw and attachments:
        raise click.UsageError(
            "--raw takes only the prompt, without files or piped input before it."
        )
    template = options.template()
    with options.open_engine(shown=pictures_in(attachments)) as engine:
        answer_options = options.answer_options(
            engine,
            stop=stop,
            logprobs=logprobs,
            **constraints,
        )
        text = attached(question, attachments)
        if raw:
            answer = engine.generate_raw(text, answer_options)
        else:
            answer = engine.generate(
                _question_with_pictures(text, attachments),
                answer_options,
                system=options.system,
                template=template,
            )
        if as_json:
            with cancel_on_interrupt(answer.cancel), answer:
                reply = answer.reply()
            write_json(_reply_json(reply, engine))
        else:
            if options.show_draft:
                show_legend()
            reply = write_answer(answer, show_draft=options.show_draft)
        if reply.finish_reason == "cancelled":
            raise click.Abort
        note_limits(reply, options.max_tokens, engine)
        if stats:
            note("\n".join(stats_lines(reply.stats, engine.context_length)))


def _question_with_pictures(
    text: str,
    attachments: Sequence[Attachment],
) -> str | list[dict[str, Any]]:
    """The question for `engine.generate`: a text, or a message with pictures before it."""
    images = [{"type": "image", "image": picture} for picture in pictures_in(attachments)]
    if not images:
        return text
    content = [*images, {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def _split_prompt(prompt: str | None, files: Sequence[Path]) -> tuple[list[Attachment], str]:
    """Read the files, stdin and PROMPT, in this order. The last of them is the prompt.

    Returns what comes before the prompt, and the prompt's text. Raises click.UsageError if
    there is no prompt, and what `read_attachment` raises.

    Args:
        prompt: the argument PROMPT; None or "-" if the prompt is elsewhere.
        files: the paths of --file.
    """
    texts = [_read_attachment_or_stdin(path) for path in files]
    if prompt is not None and prompt.endswith(".gguf") and os.path.isfile(prompt):
        raise click.UsageError(f"PROMPT is a model file. The model is given by -m {prompt}.")
    has_input = prompt == "-" or not is_terminal(sys.stdin)
    if has_input and _STDIN not in files:
        piped = read_input()
        if piped.strip():
            texts.append(Attachment("stdin", piped))
    if prompt is not None and prompt != "-" and prompt.strip():
        texts.append(Attachment("PROMPT", prompt))
    if not texts or not texts[-1].text.strip():
        raise click.UsageError("Give a PROMPT, a file (--file), or pipe one in.")
    *before, question = texts
    return before, question.text


def _read_attachment_or_stdin(path: Path) -> Attachment:
    """Read a file, or stdin if the path is "-"."""
    if path == _STDIN:
        return Attachment("stdin", read_input())
    return read_attachment(path)


def _reply_json(reply: Reply, engine: BaseEngine) -> dict[str, Any]:
    """The answer, its log-probabilities if there are any, and its statistics, for --json."""
    drafting = engine.drafting
    converted: dict[str, Any] = to_json(reply)
    converted["prompt_tokens"] = reply.stats.prompt_tokens
    converted["completion_tokens"] = reply.stats.completion_tokens
    converted["draft_tokens"] = drafting.draft_tokens or "auto"
    if drafting.is_off:
        converted["draft_tokens"] = 0
    if reply.logprobs is None:
        del converted["logprobs"]
        return converted
    converted["logprobs"] = [_with_json_names(token) for token in converted["logprobs"]]
    return converted


def _with_json_names(token: dict[str, Any]) -> dict[str, Any]:
    """A token's log-probabilities by their names in --json; the bytes in `raw` are left out."""
    renamed = {}
    for name, value in token.items():
        if name != "raw":
            renamed[_JSON_NAMES.get(name, name)] = value
    return renamed
