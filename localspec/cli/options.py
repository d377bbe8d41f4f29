"""Options that chat and generate share, and the engine they ask for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from localspec.chat.template import BUILT_IN
from localspec.chat.text_file import read_text_file
from localspec.cli import device_options, sampling_options
from localspec.cli.completion import complete_model, complete_preset, complete_template
from localspec.cli.download import offer_download
from localspec.cli.waiting import waiting
from localspec.errors import OptionError
from localspec.llama.options import LlamaOptions
from localspec.presets.choice import VARIABLE, choose_model
from localspec.presets.presets import DEFAULT_PRESET
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, Drafting, ProposerName
from localspec.speculative.rule_name import RuleName

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The options of a command that runs a pair; None means the default."""

    model: str | None
    preset: str | None
    target: str | None
    draft: str | None
    head: str | None
    draft_tokens: int | None
    proposer: ProposerName
    no_draft: bool
    system: str | None
    chat_template: str | None
    sampling_changes: dict[str, Any]
    seed: int | None
    rule: RuleName | None
    max_tokens: int | None
    ctx: int | None
    rpc: tuple[str, ...] | None
    target_options: LlamaOptions
    draft_options: LlamaOptions
    force: bool
    show_draft: bool

    def open_engine(self) -> BaseEngine:
        """Load the pair: with RPC servers in a process of its own, which they may end.

        Raises what `localspec.load` and `choose_model` raise.
        """
        # Late: completion loads no engine.
        from localspec.engine.loading import load
        from localspec.engine.sources import LoadKeywords, servers_used
        from localspec.isolated.isolated_engine import IsolatedEngine

        is_target = self.draft is not None or self.head is not None
        preset, target = choose_model(self.model, self.preset, self.target, is_target=is_target)
        if self.target is None and not is_target:
            offer_download(target or preset or DEFAULT_PRESET)
        arguments = LoadKeywords(
            target=target,
            draft=self.draft,
            head=self.head,
            draft_tokens=0 if self.no_draft else self.draft_tokens,
            proposer=self.proposer,
            context_length=self.ctx,
            rpc=self.rpc,
            target_options=self.target_options,
            draft_options=self.draft_options,
            force=self.force,
        )
        open_it: Callable[..., BaseEngine] = load
        if servers_used(preset, arguments):
            open_it = IsolatedEngine
            # The shares are of the target's devices, which are others than the draft's.
            arguments["draft_options"] = replace(self.draft_options, tensor_split=())
        loaded = [0.0]  # the share so far, read by another thread
        with waiting(lambda: f"Loading the models: {loaded[-1]:.0%} …"):
            return open_it(preset, **arguments, progress=loaded.append)

    def sampling(self, engine: BaseEngine) -> SamplingParams:
        """The preset's sampling with what the user changed. Raises OptionError."""
        return sampling_options.changed_sampling(engine, self.sampling_changes)

    def template(self) -> str | None:
        """A built-in template, or the source in a file. Raises OptionError for neither."""
        if self.chat_template is None or self.chat_template in BUILT_IN:
            return self.chat_template
        try:
            return read_text_file(Path(self.chat_template))
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--chat-template {self.chat_template}: {error}",
                f"Name one of {', '.join(BUILT_IN)}, or a Jinja file.",
            ) from error


class _Renamed(click.Option):
    """Is understood under the name that it had before, too, and shown under its own."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        name, before = self.opts
        return record and (record[0].replace(f"{name}, {before}", name), record[1])

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"'{self.opts[0]}'"


class DraftTokens(click.ParamType):  # type: ignore[type-arg]
    """A number of draft tokens; "auto" is None."""

    name = "draft tokens"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == "auto" or value is None:
            return None
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a whole number nor auto", param, ctx)


class ProposerChoice(click.Choice):  # type: ignore[type-arg]
    """A proposer; other names that the library understands are not listed."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return Drafting(proposer=value).proposer
        except OptionError:
            return super().convert(value, param, ctx)


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options; it receives them as one `PairOptions`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        values["sampling_changes"] = sampling_options.take_changes(values)
        target_options, draft_options = device_options.take_model_options(values)
        values |= {"target_options": target_options, "draft_options": draft_options}
        names = PairOptions.__dataclass_fields__
        options = PairOptions(**{name: values.pop(name) for name in names})
        return command(options, **values)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


model_argument = click.argument("model", required=False, shell_complete=complete_model)
model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=complete_model,
    help="A preset, an alias, a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT. "
    f"[default: {VARIABLE}, 'localspec models default', or {DEFAULT_PRESET}]",
)

_OPTIONS = [
    click.option(
        "--preset",
        metavar="NAME",
        shell_complete=complete_preset,
        help="A named pair; 'localspec models' lists them.",
    ),
    click.option(
        "--target",
        metavar="MODEL",
        shell_complete=complete_model,
        help="The model whose answers you get: a GGUF file, hf:owner/repo/file.gguf, "
        "owner/repo:QUANT, or a preset's.",
    ),
    click.option(
        "--draft",
        metavar="MODEL",
        shell_complete=complete_model,
        help="A small model of the same family, named likewise.",
    ),
    click.option(
        "--head",
        metavar="MODEL",
        shell_complete=complete_model,
        help="A trained head (MTP, EAGLE-3, Medusa) of the target in a file of its own, named "
        "likewise. [default: the one in the target's file, if there is one]",
    ),
    click.option(
        "--draft-tokens",
        type=DraftTokens(),
        metavar="N|auto",
        default="auto",
        show_default=True,
        help=f"Tokens proposed at a time, 0 to {MAX_DRAFT_TOKENS}, or as many as pay.",
    ),
    click.option(
        "--proposer",
        type=ProposerChoice(get_args(ProposerName)),
        default="auto",
        show_default=True,
        help="Who proposes: the draft model, a trained head, a lookup of what the text "
        "repeats, whichever pays, or nobody.",
    ),
    click.option(
        "--no-draft", is_flag=True, help="Plain decoding: the same as 0 draft tokens."
    ),
    click.option("--system", metavar="TEXT", help="A system message for the model."),
    click.option(
        "--chat-template",
        metavar="NAME|FILE",
        shell_complete=complete_template,
        help=f"{', '.join(BUILT_IN)}, or a Jinja file. [default: the model file's own]",
    ),
    *sampling_options.OPTIONS,
    click.option("--seed", type=int, help="Repeat the same answer. [default: a fresh one]"),
    click.option(
        "--rule",
        "--verify",  # its name before; `verify` is a command
        cls=_Renamed,
        type=click.Choice(get_args(RuleName)),
        help="The rule that judges draft tokens. [default: greedy at temperature 0, "
        "coupled with a seed, else block]",
    ),
    click.option("--max-tokens", type=int, help="The longest answer. [default: context]"),
    click.option(
        "--ctx", type=int, help="Context in tokens. [default: the preset's or model's]"
    ),
    *device_options.OPTIONS,
    click.option("--force", is_flag=True, help="Load even what seems too large for memory."),
    click.option("--show-draft", is_flag=True, help="Colour tokens by where they came from."),
]


def prompt_tokens(engine: BaseEngine, options: PairOptions, text: str) -> list[int]:
    """A prompt of `verify` or `bench` as the pair would get it in a conversation.

    Through the chat template, or as it is where there is none.
    """
    if engine.chat_template is None and options.chat_template is None:
        return engine.with_bos(engine.vocabulary.tokenize(text, parse_special=False))
    return engine.chat(system=options.system, template=options.template()).prompt_tokens(text)
