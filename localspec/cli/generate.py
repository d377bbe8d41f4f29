"""`localspec generate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from localspec.chat.attachment import attached, read_attachment
from localspec.cli.answer import write_answer
from localspec.cli.interrupt import cancel_on_interrupt
from localspec.cli.options import PairOptions, model_option, pair_options
from localspec.cli.screen import legend, use_colour
from localspec.cli.standard_input import on_terminal, read_text
from localspec.cli.stats_object import stats_as_object
from localspec.engine.engine import Engine
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.streaming.stream import Reply, Stream


@click.command()
@click.argument("prompt", required=False)
@model_option
@click.option(
    "--raw", is_flag=True, help="Continue the prompt as it is, without a chat template."
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer here. Repeatable.")
@click.option(
    "--json", "as_json", is_flag=True, help="One object with the answer and its costs."
)
@click.option(
    "--logprobs",
    type=int,
    metavar="N",
    help="With --json: every token's log-probability and the N best of its place.",
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=Path,
    metavar="FILE",
    help="A text file that goes before the prompt. Repeatable.",
)
@pair_options
def generate(  # noqa: PLR0913  each is an option of the command
    options: PairOptions,
    *,
    prompt: str | None,
    raw: bool,
    stop: tuple[str, ...],
    as_json: bool,
    logprobs: int | None,
    files: tuple[Path, ...],
) -> None:
    """Answer PROMPT, or what stdin holds, on stdout.

    Control characters are shown, not sent; --json carries the exact text.

    \b
        localspec generate "Tell me a story about an owl."
        localspec generate -m qwen3-8b "Why is the sky blue?"
        localspec generate --temperature 0 --json "What is 7 times 8?"
        localspec generate -f notes.txt "What have I forgotten?"
        echo "Name three colours." | localspec generate
    """
    if raw and (options.system is not None or options.chat_template is not None or files):
        raise click.UsageError("--raw has no place for --system, --chat-template or --file.")
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs needs --json.")
    attachments = [read_attachment(path) for path in files]
    if prompt == "-" or (prompt is None and not on_terminal()):
        prompt = read_text()
    if prompt is None or not prompt.strip():
        raise click.UsageError("Give a PROMPT, or pipe one in.")
    with options.open_engine() as engine:
        asker = (
            engine if raw else engine.chat(system=options.system, template=options.template())
        )
        stream = asker.stream(
            attached(prompt, attachments),
            sampling=options.sampling(engine),
            seed=options.seed,
            verify=options.rule,
            max_tokens=options.max_tokens,
            stop=stop,
            logprobs=logprobs,
        )
        if as_json:
            reply = _finish(stream)
            click.echo(json.dumps(_as_object(reply, engine)))
        else:
            if options.show_draft:
                click.echo(legend(), err=True, color=use_colour())
            reply = write_answer(stream, show_draft=options.show_draft)
    if reply.finish_reason == "cancelled":
        raise click.Abort


def _finish(stream: Stream) -> Reply:
    with cancel_on_interrupt(stream), stream:
        for _ in stream:
            pass
    return stream.reply


def _as_object(reply: Reply, engine: Engine) -> dict[str, Any]:
    stats = reply.stats
    policy = engine.draft_policy
    return {
        "text": reply.text,
        "thoughts": reply.thoughts,
        "token_ids": list(reply.token_ids),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "seed": reply.seed,
        "verify": reply.verify,
        **_logprobs(reply, engine),
        "draft_tokens": (
            policy.num_draft_tokens if isinstance(policy, FixedDraftPolicy) else "auto"
        ),
        "stats": stats_as_object(stats),
    }


def _logprobs(reply: Reply, engine: Engine) -> dict[str, Any]:
    """Of each token, if asked for: the model's own distribution, and after the chain."""
    if reply.logprobs is None:
        return {}

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = engine.vocabulary.piece(token).decode("utf-8", errors="replace")
        return {"token_id": token, "text": text, "logprob": logprob}

    return {
        "logprobs": [
            {
                **entry(each.token_id, each.before),
                "logprob_after": each.after,
                "top": [entry(*other) for other in each.top_before],
                "top_after": [entry(*other) for other in each.top_after],
            }
            for each in reply.logprobs
        ]
    }
