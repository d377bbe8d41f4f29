"""The options that several commands share, in the order of --help, and their values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from localspec.chat.shown import HOW_TO_SEE
from localspec.chat.template import BUILT_IN
from localspec.cli.completers import complete_model, complete_preset, complete_template
from localspec.cli.download_dialogue import offer_download
from localspec.cli.flags import (
    Decorator,
    NumberRange,
    Parsed,
    field_type,
    flags_of,
    option,
    read_option_file,
    usual_flag,
    with_all,
)
from localspec.cli.progress_line import waiting
from localspec.errors import OptionError
from localspec.gguf_file.adapter import split_scale
from localspec.llama.model_options import ALL_LAYERS, LlamaOptions
from localspec.presets.model_names import choose_model
from localspec.presets.presets import DEFAULT_PRESET, Adapter
from localspec.rpc_address import checked_addresses
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, ProposerName, RuleName

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine
    from localspec.engine.sources import LoadKeywords
    from localspec.pictures.picture import Picture
    from localspec.streaming.answer_options import AnswerOptions


def _rpc_addresses(text: str) -> tuple[str, ...]:
    """Comma-separated addresses of RPC servers; "none" means no server."""
    if text == "none":
        return ()
    return checked_addresses(text.split(","))


def _adapter(text: str) -> Adapter:
    """An adapter's file and scale. Raises OptionError for a scale out of range."""
    return Adapter(*split_scale(text))


def _bias(text: str) -> tuple[int, float]:
    """The token id and the bias in ID=NUMBER. Raises ValueError."""
    token, _, number = text.partition("=")
    return int(token), float(number)


def _draft_tokens(text: str) -> int | None:
    """A number of draft tokens; None for auto. Raises ValueError."""
    if text == "auto":
        return None
    return int(text)


def _shares(text: str) -> tuple[float, ...]:
    """Numbers with commas between them. Raises ValueError."""
    return tuple(map(float, text.split(",")))


def _row(help: str, **more: Any) -> dict[str, Any]:
    """An option of the table: its help, and other keywords for click."""
    return {"help": help, **more}


SERVED_CONTEXT = "Context in tokens. [default: the preset's, or the model's own up to 8192]"
# Bytes: enough for some days of agents' conversations, whose prompts take minutes to read.
CACHE_DISK = 8_000_000_000
MODEL_NAMES = "a GGUF file, hf:owner/repo/file.gguf or owner/repo:QUANT"
_MODEL = {"metavar": "MODEL", "shell_complete": complete_model}
_FILE = {"type": click.Path(path_type=Path), "metavar": "FILE"}
_MANY = {"multiple": True, "metavar": "TEXT"}
_AUTO = {"default": "auto", "show_default": True}
_DEFAULTS = SamplingParams()

# Options of llama.cpp that are refused with the reason.
_REFUSED = (
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_lr",
    "mirostat_ent",
    "adaptive_target",
    "adaptive_decay",
)
# Options by heading and name. If the value is only a help text, the option stands for the field
# of that name in LlamaOptions or, below "Sampling", in SamplingParams, and has its type.
# A name that begins with draft_ stands for the draft model's field.
_OPTIONS: dict[str, dict[str, str | dict[str, Any]]] = {
    "Options": {
        "json_schema": _row(
            "The answer is JSON that matches the schema in this file.",
            **_FILE,
        ),
        "strict": _row(
            "With --json-schema: fail if a part of the schema cannot be enforced.",
            is_flag=True,
        ),
        "regex": _row("The whole answer matches this regular expression.", metavar="REGEX"),
        "grammar": _row(
            "The answer matches the grammar in this file, .lark or .gbnf.",
            **_FILE,
        ),
        "choices": _row(
            "The answer is one of the choices. Repeatable.",
            **_MANY,
            flags=["--choice"],
        ),
        "prompts": _row(
            "A file with prompts of your own, one per line. [default: built-in ones]",
            **_FILE,
        ),
        "seconds": _row(
            "The time limit, once the models are loaded. Then the results so far are printed.",
            type=NumberRange(min=1),
            show_default=True,
        ),
    },
    "Model": {
        "preset": _row(
            "A named pair; 'localspec models' lists all.",
            metavar="NAME",
            shell_complete=complete_preset,
        ),
        "target": _row(
            f"The model whose answers you get: {MODEL_NAMES}, or a preset whose target is "
            "used.",
            **_MODEL,
        ),
        "draft": _row(
            "A small draft model of the target's family, named like the --target.",
            **_MODEL,
        ),
        "head": _row(
            "A trained head (MTP, EAGLE-3, DFlash, Medusa) for the target, in a file of its "
            "own. [default: the one in the target's file, if there is one]",
            **_MODEL,
        ),
        "mmproj": _row(
            "The projector with which the target sees images, named like the --target. "
            "[default: the preset's, or a file mmproj*.gguf beside the target's]",
            **_MODEL,
        ),
        "adapters": _row(
            "A LoRA adapter for the target, and what its weights are multiplied with; 0 "
            "leaves it out. Draft and head keep their own weights. Repeatable. [default: the "
            "preset's; SCALE: 1]",
            type=Parsed(_adapter, "is not FILE or FILE=SCALE with a scale from -1000 to 1000"),
            multiple=True,
            metavar="FILE[=SCALE]",
            flags=["--lora"],
        ),
        "context_length": _row(
            "Context in tokens. [default: the preset's or the model's]",
            type=click.IntRange(min=1),
        ),
        "force": _row("Load even if memory seems too small.", is_flag=True),
    },
    "Drafting": {
        "proposer": _row(
            "What drafts: auto (whichever pays), the draft model, a trained head, lookup (text "
            "that repeats), or none.",
            type=click.Choice(get_args(ProposerName)),
            **_AUTO,
        ),
        "draft_tokens": _row(
            f"Tokens drafted per step, 0 to {MAX_DRAFT_TOKENS}, or auto: as many as pay.",
            type=Parsed(_draft_tokens, "is neither a whole number nor auto"),
            metavar="N|auto",
            **_AUTO,
        ),
        "no_draft": _row("Plain decoding: the same as --draft-tokens 0.", is_flag=True),
        "rule": _row(
            "The rule that accepts or rejects draft tokens. [default: greedy at temperature 0, "
            "coupled with a seed, else block]",
            type=click.Choice(get_args(RuleName)),
        ),
    },
    "Prompt and answer": {
        "system": _row("The system message.", metavar="TEXT"),
        "template_name": _row(
            f"{', '.join(BUILT_IN)}, or a Jinja file. [default: the model file's own]",
            flags=flags_of("template"),
            metavar="NAME|FILE",
            shell_complete=complete_template,
        ),
        "max_tokens": _row(
            "The maximum number of tokens in an answer. [default: what fits]",
            type=int,
        ),
        "seed": _row("Makes the answer repeatable. [default: random]", type=int),
    },
    "Sampling": {
        "temperature": "0 is greedy.",
        "top_k": "0 is off.",
        "top_p": "1 is off; 0 leaves only the likeliest token.",
        "min_p": "0 is off.",
        "typical_p": "Locally typical sampling; 1 or 0 is off.",
        "top_n_sigma": "Standard deviations below the best logit; below 0 is off.",
        "repetition_penalty": "Divides the logits of recent tokens; 1 or 0 is off.",
        "presence_penalty": "Subtracted from the logits of recent tokens; 0 is off.",
        "frequency_penalty": "Subtracted once for each occurrence; 0 is off.",
        "penalty_last_n": "How many tokens count as recent.",
        "dry_multiplier": "DRY, against repeated sequences; 0 is off.",
        "dry_base": "Growth of DRY's penalty per repeated token.",
        "dry_allowed_length": "Tokens that may repeat without DRY's penalty.",
        "dry_penalty_last_n": "How many tokens DRY searches for repeats.",
        "min_tokens": "The minimum number of tokens in an answer.",
        "ignore_eos": "Continue where the model would end the answer.",
        "logit_bias": _row(
            "Added to a token's logit; -inf bans the token. Repeatable.",
            type=Parsed(_bias, "is not ID=NUMBER, such as 42=-1.5 or 42=-inf."),
            **_MANY | {"metavar": "ID=NUMBER"},
        ),
        "ban": _row(
            "A token to ban, by its text or id. Repeatable.",
            **_MANY | {"metavar": "TEXT|ID"},
        ),
        "dry_sequence_breakers": _row(
            'A text that ends a repeated sequence; "none" for none. Repeatable. '
            f"[default: {' '.join(map(ascii, _DEFAULTS.dry_sequence_breakers))}]",
            **_MANY,
            flags=["--dry-sequence-breaker"],
        ),
        **{name: {"hidden": True} for name in _REFUSED},
    },
    "Device": {
        "num_threads": "CPU threads. [default: one per fast core]",
        "num_batch_threads": "CPU threads for prompts. [default: --threads]",
        "draft_num_threads": "CPU threads of the draft model. [default: --threads]",
        "num_gpu_layers": "Layers on GPUs; the others stay in main memory. [default: as many "
        "as fit]",
        "device": "Where to compute: cpu, or a GPU by llama.cpp's name, as Vulkan0. [default: "
        "what reads and writes fastest; it is measured at the first load]",
        "draft_num_gpu_layers": "Layers of the draft model on GPUs. [default: --gpu-layers]",
        "cpu_moe": _row(
            "Keep the target's experts in main memory. [default: those that do not fit]",
            is_flag=True,
        ),
        "flash_attention": "Flash attention, for both models; auto: off on a CPU, unless it "
        "saves much memory. [default: auto]",
        "cache_type_k": "Type of the cached keys. [default: f16]",
        "cache_type_v": "Type of the cached values. [default: f16]",
        "draft_cache_type_k": "Type of the draft model's cached keys. [default: f16]",
        "draft_cache_type_v": "Type of the draft model's cached values. [default: f16]",
        "use_mmap": "Map the files, or read them into memory. [default: map large ones]",
        "use_mlock": "Keep the models from being swapped out.",
        "main_gpu": "The one GPU to use. [default: all of them]",
        "rpc": _row(
            "llama.cpp RPC servers that hold some of the target's layers. [default: the "
            "preset's]",
            type=Parsed(_rpc_addresses, "is not a list of addresses"),
            metavar="HOST:PORT,…",
        ),
        "tensor_split": _row(
            "Shares of the RPC servers, then of the GPUs, in their order. [default: by free "
            "memory]",
            type=Parsed(_shares, "is not a list of numbers, such as 3,1"),
            default=(),
            metavar="A,B,…",
        ),
        "repack": "Keep weights in an order that suits the processor. [default: yes, "
        "unless --exact needs another]",
        "exact": "Give the same answer, bit for bit, with any draft, number of threads or "
        "cached text; it may be slower. [default: no]",
    },
    "Output": {"show_draft": _row("Colour tokens by where they came from.", is_flag=True)},
}
_LOADING = (
    "draft",
    "head",
    "mmproj",
    "adapters",
    "draft_tokens",
    "proposer",
    "context_length",
    "force",
)
# Sampling options that can be checked only with a model's vocabulary.
_NEED_VOCABULARY = ("ban", "logit_bias")
_CONSTRAINTS = ("json_schema", "strict", "regex", "grammar", "choices")
# The options of commands that run a pair: all but those of single commands.
_PAIR_OPTIONS: list[str] = []
for _heading, _rows in _OPTIONS.items():
    if _heading != "Options":
        _PAIR_OPTIONS += _rows


def _sampling_keywords() -> Iterator[tuple[str, str]]:
    """The names that /set knows for each sampling option, each with the option's keyword.

    A name is a flag without its dashes, such as repeat_penalty for --repeat-penalty.
    """
    for keyword, row in _OPTIONS["Sampling"].items():
        if isinstance(row, str):  # the others take lists, or are refused
            for flag in flags_of(keyword):
                yield flag.removeprefix("--").replace("-", "_"), keyword


SAMPLING_KEYWORDS = dict(_sampling_keywords())

model_argument = click.argument("model", required=False, shell_complete=complete_model)


def shared(*names: str, **changes: Any) -> Decorator:
    """Decorate a command with options of the table.

    Args:
        names: the options' names.
        changes: keywords for click in place of those in the table.
    """
    return functools.partial(with_all, [_option(name, **changes) for name in names])


def _option(name: str, **changes: Any) -> Decorator:
    """The decorator for an option of the table; `changes` as for `shared`."""
    [heading] = [heading for heading, rows in _OPTIONS.items() if name in rows]
    row = _OPTIONS[heading][name]
    if isinstance(row, dict):
        return option(name, heading=heading, **row | changes)
    field = name.removeprefix("draft_")
    owner: type = LlamaOptions
    if heading == "Sampling":
        owner = SamplingParams
        default = getattr(_DEFAULTS, name)
        if not isinstance(default, bool):
            row += f" [default: {default}]"
    keywords: dict[str, Any] = {
        "help": row,
        **field_type(owner, field),
        **changes,
    }
    if field != name:
        keywords["flags"] = [usual_flag(field).replace("--", "--draft-")]
    return option(name, heading=heading, **keywords)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The options of a command that runs a pair; None means the default."""

    model: str | None
    preset: str | None
    target: str | None
    loading: LoadKeywords
    """Keywords of `localspec.load` besides the target."""

    system: str | None
    template_name: str | None
    sampling_changes: dict[str, Any]
    seed: int | None
    rule: RuleName | None
    """The rule that accepts or replaces draft tokens."""

    max_tokens: int | None
    show_draft: bool

    def open_engine(
        self,
        *,
        memory: bool = True,
        cache_disk: int = 0,
        shown: Sequence[Picture] = (),
    ) -> BaseEngine:
        """Load the pair; on a terminal, offer to download it first if it is missing.

        With RPC servers the pair runs in another process, since they may crash it.
        Raises the errors of `localspec.load` and `choose_model`, and OptionError if there are
        pictures and the target cannot see.

        Args:
            memory: whether earlier texts are drafted from; False for measurements, since their
                repeated prompts would gain from it.
            cache_disk: as for `localspec.load`.
            shown: the pictures of the prompt.
        """
        # Imported here: completion must not load an engine.
        from localspec.engine.loading import load
        from localspec.engine.sources import servers_used
        from localspec.engine.vision import sees
        from localspec.isolated.isolated_engine import IsolatedEngine

        loading = self.loading
        # With --draft or --head, MODEL is the target alone, not a pair.
        is_target = loading.get("draft") is not None or loading.get("head") is not None
        model = choose_model(
            self.model,
            self.preset,
            self.target,
            is_target=is_target,
        )
        if self.target is None and not is_target:
            offer_download(model or DEFAULT_PRESET)
        arguments: LoadKeywords = {
            **loading,
            "target": self.target,
            "memory": memory,
        }
        arguments["cache_disk"] = cache_disk
        if shown and not sees(model, arguments):
            name = model or self.target or DEFAULT_PRESET
            raise OptionError(
                f"{shown[0].name} is an image, and {name} has no projector to see it",
                HOW_TO_SEE,
            )
        load_engine: Callable[..., BaseEngine] = load
        if servers_used(model, arguments):
            load_engine = IsolatedEngine
            # The shares begin with the servers', which have none of the draft's layers.
            draft_options = loading.get("draft_options") or LlamaOptions()
            arguments["draft_options"] = replace(draft_options, tensor_split=())
        loaded = [0.0]  # the shares loaded so far; the thread of `waiting` reads the last
        with waiting(lambda: f"Loading the models: {loaded[-1]:.0%} …"):
            return load_engine(model, **arguments, progress=loaded.append)

    def answer_options(self, engine: BaseEngine, **more: Any) -> AnswerOptions:
        """The options of an answer. Its sampling is the preset's with the user's changes.

        Raises OptionError.

        Args:
            engine: the engine that answers.
            more: other fields of `AnswerOptions`.
        """
        from localspec.streaming.answer_options import AnswerOptions  # loads NumPy

        sampling = changed_sampling(engine, self.sampling_changes)
        return AnswerOptions(
            sampling=sampling,
            seed=self.seed,
            rule=self.rule,
            max_tokens=self.max_tokens,
            **more,
        )

    def template(self) -> str | None:
        """The chat template: a built-in one's name, or a file's content; None for the model's.

        Raises OptionError if the file cannot be read.
        """
        if self.template_name is None or self.template_name in BUILT_IN:
            return self.template_name
        return read_option_file(
            usual_flag("template"),
            Path(self.template_name),
            f"Name one of {', '.join(BUILT_IN)}, or a Jinja file.",
        )


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of a pair. It gets them as one `PairOptions`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        """Call the command with a `PairOptions`, and its other options as they are."""
        values["sampling_changes"] = _sampling_changes(_pop_all(values, _OPTIONS["Sampling"]))
        device = _pop_all(values, _OPTIONS["Device"])
        loading = {"rpc": device.pop("rpc"), **_llama_options(device)}
        loading |= _pop_all(values, _LOADING)
        loading["adapters"] = loading["adapters"] or None  # None means the preset's
        if values.pop("no_draft"):
            loading["draft_tokens"] = 0
        values["loading"] = loading
        options = PairOptions(**_pop_all(values, PairOptions.__dataclass_fields__))
        return command(options, **values)

    return with_all([_option(name) for name in _PAIR_OPTIONS], with_options)


def _pop_all(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove the values of these names from `values`, and return them by name."""
    return {name: values.pop(name) for name in names}


def _sampling_changes(values: dict[str, Any]) -> dict[str, Any]:
    """The sampling options that the user gave. Raises OptionError for a value out of range.

    The ranges are checked here, before a model is downloaded or loaded.
    """
    changes = {}
    for name, value in values.items():
        is_missing = value is None or value is False or value == ()  # 0 is a value
        if not is_missing:
            changes[name] = value
    checkable = {name: value for name, value in changes.items() if name not in _NEED_VOCABULARY}
    SamplingParams().changed(checkable)
    return changes


def _llama_options(values: dict[str, Any]) -> dict[str, LlamaOptions]:
    """The keywords target_options and draft_options of `localspec.load`.

    Raises OptionError for a value outside its range.

    Args:
        values: the values of the options below "Device", except for --rpc.
    """
    common: dict[str, Any] = {}
    draft_alone: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("draft_"):
            draft_alone[name.removeprefix("draft_")] = value
        else:
            common[name] = value
    common["flash_attention"] = common["flash_attention"] or "auto"
    exact = common.pop("exact")
    num_cpu_moe_layers = None
    if common.pop("cpu_moe"):
        num_cpu_moe_layers = ALL_LAYERS
    for name in ("num_threads", "num_gpu_layers"):
        if draft_alone[name] is None:
            draft_alone[name] = common[name]
    return {
        "target_options": LlamaOptions(
            **common,
            num_cpu_moe_layers=num_cpu_moe_layers,
            exact=exact,
        ),
        "draft_options": LlamaOptions(**common | draft_alone),
    }


def changed_sampling(engine: BaseEngine, changes: dict[str, Any]) -> SamplingParams:
    """The engine's sampling with the user's changes.

    The preset's biases stay, except for tokens whose bias the user changes.
    Raises OptionError for a value outside its range, a sampler without a fixed distribution, or
    a ban of text that is not one token.
    """
    changes = dict(changes)
    bans = changes.pop("ban", ())
    biases = dict(changes.pop("logit_bias", ()))
    for text in bans:
        biases[_banned_token(text, engine)] = float("-inf")
    if biases:
        changes["logit_bias"] = {**engine.sampling.logit_bias, **biases}
    if "dry_sequence_breakers" in changes:
        breakers = []
        for text in changes["dry_sequence_breakers"]:
            if text != "none":
                breakers.append(text.replace(r"\n", "\n"))  # hard to type in a shell
        changes["dry_sequence_breakers"] = tuple(breakers)
    return engine.sampling.changed(changes)


def _banned_token(text: str, engine: BaseEngine) -> int:
    """The token id that --ban names, by the id or the text. Raises OptionError."""
    if text.isdecimal():
        return int(text)
    tokens = engine.vocabulary.tokenize(text, parse_special=True)
    if len(tokens) != 1:
        raise OptionError(
            f"--ban {text!r} is {len(tokens)} tokens for this model: {tokens}",
            "Ban one token by its id or its exact text, perhaps with a leading space.",
        )
    return tokens[0]


def constraint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options that constrain an answer.

    It gets them as `constraints`: keywords of `AnswerOptions`, those alone that were given.
    """

    @functools.wraps(command)
    def with_options(
        *,
        json_schema: Path | None,
        strict: bool,
        grammar: Path | None,
        **values: Any,
    ) -> Any:
        if strict and json_schema is None:
            raise OptionError("--strict needs --json-schema", "Add it, or leave --strict out.")
        constraints = {}
        for name in ("regex", "choices"):
            value = values.pop(name)
            if value not in (None, ()):
                constraints[name] = value
        if json_schema is not None:
            constraints["json_schema"] = read_option_file("--json-schema", json_schema)
            constraints["strict"] = strict
        if grammar is not None:
            constraints["grammar"] = read_option_file("--grammar", grammar)
        return command(constraints=constraints, **values)

    return with_all([_option(name) for name in _CONSTRAINTS], with_options)
