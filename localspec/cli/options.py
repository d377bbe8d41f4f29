"""The options of commands that run a pair, and the engine that they describe."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from localspec.chat.template import BUILT_IN
from localspec.cli import device_options, sampling_options
from localspec.cli.completion import complete_preset, complete_template
from localspec.cli.download import offer_download
from localspec.cli.flags import Decorator, flags_of, read_option_file, usual_flag, with_all
from localspec.cli.model_options import context_option, target_draft_head
from localspec.cli.waiting import waiting
from localspec.errors import OptionError
from localspec.llama.options import LlamaOptions
from localspec.presets.choice import choose_model
from localspec.presets.presets import DEFAULT_PRESET
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, Drafting, ProposerName
from localspec.speculative.rule_name import RuleName

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.engine.sources import LoadKeywords
    from localspec.streaming.options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The options of a command that runs a pair; None means the default.

    loading: keywords of `localspec.load` besides the target.
    """

    model: str | None
    preset: str | None
    target: str | None
    loading: LoadKeywords
    system: str | None
    template_name: str | None
    sampling_changes: dict[str, Any]
    seed: int | None
    rule: RuleName | None
    max_tokens: int | None
    show_draft: bool

    def open_engine(self, *, memory: bool = True) -> BaseEngine:
        """Load the pair; with RPC servers in a process of its own, since they may crash it.

        memory: as for `localspec.load`; a measurement, which repeats its prompts, has none.
        Raises the errors of `localspec.load` and `choose_model`.
        """
        # Imported here: completion must not load an engine.
        from localspec.engine.loading import load
        from localspec.engine.sources import servers_used
        from localspec.isolated.isolated_engine import IsolatedEngine

        loading = self.loading
        is_target = loading.get("draft") is not None or loading.get("head") is not None
        preset, target = choose_model(self.model, self.preset, self.target, is_target=is_target)
        if self.target is None and not is_target:
            offer_download(target or preset or DEFAULT_PRESET)
        arguments: LoadKeywords = {**loading, "target": target, "memory": memory}
        open_it: Callable[..., BaseEngine] = load
        if servers_used(preset, arguments):
            open_it = IsolatedEngine
            # The shares are for the target's devices, not the draft's.
            of_draft = loading.get("draft_options") or LlamaOptions()
            arguments["draft_options"] = replace(of_draft, tensor_split=())
        loaded = [0.0]  # the share so far, read by another thread
        with waiting(lambda: f"Loading the models: {loaded[-1]:.0%} …"):
            return open_it(preset, **arguments, progress=loaded.append)

    def for_answer(self, engine: BaseEngine, **more: Any) -> AnswerOptions:
        """The options of an answer; its sampling is the preset's with the user's changes.

        more: other fields of `AnswerOptions`. Raises OptionError.
        """
        from localspec.streaming.options import AnswerOptions  # loads NumPy

        sampling = sampling_options.changed_sampling(engine, self.sampling_changes)
        return AnswerOptions(sampling, self.seed, self.rule, self.max_tokens, **more)

    def template(self) -> str | None:
        """The name of a built-in template, or a file's content. Raises OptionError."""
        if self.template_name is None or self.template_name in BUILT_IN:
            return self.template_name
        return read_option_file(
            usual_flag("template"),
            Path(self.template_name),
            f"Name one of {', '.join(BUILT_IN)}, or a Jinja file.",
        )


def _parse_draft_tokens(
    _context: click.Context, _option: click.Parameter, text: str
) -> int | None:
    """A number of draft tokens; "auto" is None."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a whole number nor auto") from None


class ProposerChoice(click.Choice):  # type: ignore[type-arg]
    """A proposer. Other names that the library understands work, but are not listed."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return Drafting(proposer=value).proposer
        except OptionError:
            return super().convert(value, param, ctx)


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options. It receives them as one `PairOptions`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        values["sampling_changes"] = sampling_options.take_changes(values)
        loading = {name: values.pop(name) for name in _LOADING}
        if values.pop("no_draft"):
            loading["draft_tokens"] = 0
        values["loading"] = loading | device_options.take_model_options(values)
        names = PairOptions.__dataclass_fields__
        options = PairOptions(**{name: values.pop(name) for name in names})
        return command(options, **values)

    return with_all(_OPTIONS, with_options)


_LOADING = (
    *("draft", "head", "mmproj", "draft_tokens", "proposer", "context_length", "rpc"),
    "force",
)
_OPTIONS = [
    click.option(
        "--preset",
        metavar="NAME",
        shell_complete=complete_preset,
        help="A named pair; 'localspec models' lists all.",
    ),
    target_draft_head(),
    click.option(
        "--draft-tokens",
        callback=_parse_draft_tokens,
        metavar="N|auto",
        default="auto",
        show_default=True,
        help=f"Tokens drafted per step, 0 to {MAX_DRAFT_TOKENS}, or auto: as many as pay.",
    ),
    click.option(
        "--proposer",
        type=ProposerChoice(get_args(ProposerName)),
        default="auto",
        show_default=True,
        help="What drafts: auto (whichever pays), the draft model, a trained head, lookup "
        "(text that repeats), or none.",
    ),
    click.option(
        "--no-draft", is_flag=True, help="Plain decoding: the same as --draft-tokens 0."
    ),
    click.option("--system", metavar="TEXT", help="The system message."),
    click.option(
        *flags_of("template"),
        "template_name",
        metavar="NAME|FILE",
        shell_complete=complete_template,
        help=f"{', '.join(BUILT_IN)}, or a Jinja file. [default: the model file's own]",
    ),
    *sampling_options.SAMPLING_OPTIONS,
    click.option("--seed", type=int, help="Makes the answer repeatable. [default: random]"),
    click.option(
        "--rule",
        type=click.Choice(get_args(RuleName)),
        help="The rule that accepts or rejects draft tokens. [default: greedy at temperature "
        "0, coupled with a seed, else block]",
    ),
    click.option(
        "--max-tokens", type=int, help="The most tokens of an answer. [default: what fits]"
    ),
    context_option("the preset's or the model's"),
    *device_options.DEVICE_OPTIONS,
    click.option("--force", is_flag=True, help="Load even if memory seems too small."),
    click.option("--show-draft", is_flag=True, help="Colour tokens by where they came from."),
]


def seconds_option(default: float) -> Decorator:
    """Decorate a command that measures with the time limit."""
    return click.option(
        "--seconds",
        type=click.FloatRange(min=1),
        callback=_no_nan,
        default=default,
        show_default=True,
        help="The time limit, once the models are loaded. Then the results so far are printed.",
    )


def _no_nan(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if math.isnan(value):  # no range excludes it
        raise click.BadParameter("nan is not a number of seconds.")
    return value
