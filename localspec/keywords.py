"""Keywords and options, their names in other libraries and programs, and errors with both.

One table is for both: the keywords of calls, and the options of commands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, TypeVar

from localspec.errors import UnknownKeywordError, did_you_mean

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class")


class _Row(NamedTuple):
    """What to write in localspec in place of some names of other libraries and programs."""

    foreign_names: Sequence[str]
    """The names, as Python writes them (num_predict). An option with one dash is written as it
    is typed (-n)."""

    keyword: str = ""
    """localspec's keyword with the same meaning; empty if there is none."""

    advice: str = ""
    """What to do in Python, in sentences, if there is no such keyword, or its value differs."""

    flags: Sequence[str] = ()
    """What to type in a command if it is not the option of `keyword`: options, names of
    arguments, or several words. Of these only the ones count that the command has."""


# Names of llama.cpp, llama-cpp-python, Ollama, openai, transformers and vLLM.
_TABLE = (
    # answers
    _Row(
        ("num_predict", "n_predict", "predict", "max_new_tokens", "max_completion_tokens",
         "max_output_tokens", "max_length", "-n"),
        "max_tokens",
    ),
    _Row(("min_new_tokens", "min_length"), "min_tokens"),
    _Row(("temp",), "temperature"),
    _Row(
        ("do_sample",), "temperature", "temperature=0 is greedy; above 0 tokens are drawn.",
        ("--temperature 0",),
    ),
    _Row(("repeat_penalty",), "repetition_penalty"),
    _Row(("repeat_last_n", "last_n_tokens_size"), "penalty_last_n"),
    _Row(("typ_p",), "typical_p"),
    _Row(("stop_strings", "stop_sequence", "stop_sequences"), "stop"),
    _Row(
        ("response_format", "format", "text_format", "schema", "guided_json"), "json_schema",
        "It takes a JSON schema, a dataclass or a class of Pydantic.",
    ),
    _Row(("guided_regex",), "regex"),
    _Row(("guided_grammar",), "grammar"),
    _Row(("guided_choice",), "choices", flags=("--choice",)),
    _Row(("functions",), "tools"),
    _Row(("function_call",), "tool_choice"),
    _Row(("top_logprobs", "output_scores", "output_logits", "logits_all"), "logprobs"),
    _Row(
        ("stream", "stream_options", "streamer", "no_stream"),
        advice="Iterate over the answer: its pieces come as they are made.",
        flags=("no option, since answers are shown as they are written",),
    ),
    _Row(
        ("n", "best_of", "num_return_sequences"),
        advice="Ask once for each answer: every call gives one.",
    ),
    _Row(
        ("image", "images"),
        advice="chat.send(text, images=[…]) takes them; for engine.generate put them into the "
        "messages.",
        flags=("--image",),
    ),
    _Row(("raw",), advice="engine.generate_raw(text) puts no template around it."),
    _Row(
        ("pad_token_id", "eos_token_id", "bos_token_id", "skip_special_tokens"),
        advice="Leave it out: the model's file names these tokens, and they never appear in "
        "the text.",
    ),
    _Row(
        ("return_full_text", "echo"),
        advice="Leave it out: reply.text is the answer without the prompt.",
    ),
    # questions and conversations
    _Row(
        ("prompt", "messages", "input", "inputs", "-p"),
        advice='Give it first, without a name: engine.generate("Hi") or '
        "engine.generate(messages).",
        flags=("prompt", "localspec generate -m MODEL PROMPT"),
    ),
    _Row(("system_prompt", "system_message", "instructions", "-sys"), "system"),
    _Row(("chat_template", "chat_format"), "template"),
    _Row(
        ("think", "thinking", "reasoning", "reasoning_effort", "enable_thinking",
         "hidethinking", "reasoning_budget"),
        "think", "think=False asks for an answer at once.", ("--no-think",),
    ),
    _Row(
        ("interactive", "conversation", "-i", "-cnv"),
        advice="engine.chat() begins a conversation.",
        flags=("localspec chat",),
    ),
    # models
    _Row(
        ("model", "model_path", "model_name", "model_id", "path", "filename", "repo_id",
         "hf_repo", "preset", "target", "-m", "-hf"),
        advice='Give the model first, without a name: localspec.load("model.gguf").',
        flags=("model", "models", "presets", "-m"),
    ),
    _Row(
        ("ctx", "ctx_size", "n_ctx", "num_ctx", "max_model_len", "max_seq_len", "-c"),
        "context_length",
    ),
    _Row(("threads", "n_threads", "num_thread", "-t"), "num_threads"),
    _Row(("threads_batch", "n_threads_batch"), "num_batch_threads"),
    _Row(("gpu_layers", "n_gpu_layers", "num_gpu", "device_map", "-ngl"), "num_gpu_layers"),
    _Row(("flash_attn", "-fa"), "flash_attention"),
    _Row(("type_k",), "cache_type_k"),
    _Row(("type_v",), "cache_type_v"),
    _Row(("n_batch", "num_batch", "n_ubatch"), advice="Leave it out: localspec chooses it."),
    _Row(("draft_model", "model_draft", "assistant_model", "-md"), "draft"),
    _Row(
        ("draft_max", "draft_n", "spec_draft_n_max", "draft_num_predict", "num_pred_tokens",
         "num_assistant_tokens", "num_speculative_tokens"),
        "draft_tokens",
    ),
    _Row(
        ("prompt_lookup_num_tokens",), "proposer",
        'proposer="lookup" drafts from the text.', ("--proposer lookup",),
    ),
    _Row(("chat_handler", "clip_model_path"), "mmproj"),
    _Row(
        ("lora", "lora_path", "lora_paths", "lora_adapters", "lora_scaled", "lora_scale",
         "lora_request", "adapter", "enable_lora"),
        "adapters", 'adapters=[localspec.Adapter("lora.gguf", scale=0.5)].',
        ("--lora FILE=SCALE",),
    ),
    _Row(("n_parallel", "num_parallel", "max_num_seqs", "-np"), "parallel"),
    _Row(
        ("embedding", "embedding_only"),
        advice='localspec.load_embedder("model.gguf") loads a model for vectors.',
    ),
    _Row(
        ("keep_alive",), advice="Leave it out: the models stay loaded until engine.close()."
    ,),
    _Row(
        ("verbose", "-v"),
        advice='The logger "localspec" has warnings, and reply.stats the figures of an answer.',
        flags=("--stats",),
    ),
)  # fmt: skip


def _by_foreign_name(table: Iterable[_Row]) -> dict[str, _Row]:
    """The rows of a table by each of their foreign names."""
    rows: dict[str, _Row] = {}
    for row in table:
        rows.update(dict.fromkeys(row.foreign_names, row))
    return rows


_ROWS = _by_foreign_name(_TABLE)

# Keywords that an error lists if there are many, the most usual first.
_USUAL = (
    "max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "json_schema", "tools",
    "draft", "context_length", "num_threads", "num_gpu_layers", "parallel", "cache_disk",
)  # fmt: skip
_MOST_LISTED = 8
_call_of: dict[str, str] = {}  # the call that takes a keyword, as `note_keywords` has noted it


def note_keywords(call: str, names: Iterable[str]) -> None:
    """Note which keywords a call takes: errors of other calls that get them then name it.

    Args:
        call: The beginning of the call as an application writes it, as "engine.chat(".
        names: The names of its keywords.
    """
    _call_of.update(dict.fromkeys(names, call))


def keyword_for(name: str) -> str:
    """localspec's keyword for another library's name; the name itself if there is none."""
    if name not in _ROWS:
        return name
    return _ROWS[name].keyword or name


def flags_for(option: str, flag_of: Callable[[str], str]) -> Sequence[str]:
    """What to type in a command for another program's option, the best first.

    Empty if the option is unknown, or has no counterpart.

    Args:
        option: The option as the user typed it.
        flag_of: Returns the option of a command for a keyword.
    """
    name = option
    if option.startswith("--"):
        name = option.removeprefix("--").replace("-", "_")
    row = _ROWS.get(name)
    if row is None:
        return ()
    if row.flags or not row.keyword:
        return row.flags
    return [flag_of(row.keyword)]


def check_keywords(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UnknownKeywordError if a name is not known, with a hint what to write instead.

    Args:
        names: The keywords of a call.
        known: The keywords that the call takes.
    """
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            replacement = _replacement_for(name, known).strip()
            hint = f"{replacement} {_known_options(known)}".strip()
            raise UnknownKeywordError(f"unknown option {name!r}", hint)


def known_keywords(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Decorate a function so that it refuses unknown keywords as `check_keywords` does."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        check_keywords(keywords, known)
        return function(*arguments, **keywords)

    return checked


def known_fields(cls: type[_Class]) -> type[_Class]:
    """Decorate a dataclass so that it refuses unknown keywords as `check_keywords` does."""
    constructor = "__init__"
    setattr(cls, constructor, known_keywords(getattr(cls, constructor)))
    return cls


def explained(
    hint: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """A decorator of functions: TypeErrors for wrong arguments say what to write instead.

    A TypeError that the function itself raises stays as it is.

    Args:
        hint: What to write, in a sentence.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
            try:
                signature.bind(*arguments, **keywords)
            except TypeError as error:
                # The class of a constructor, or the name of a function or method.
                qualified_name = function.__qualname__.removesuffix(".__init__")
                name = qualified_name.rpartition(".")[2]
                raise TypeError(f"{name}(): {error}. {hint}") from None
            return function(*arguments, **keywords)

        return checked

    return decorate


class ForeignNames:
    """A base of classes: AttributeErrors for names of other libraries say what to write.

    Nothing else changes: `hasattr`, and `getattr` with a default, work as usual.
    """

    _instead: ClassVar[Mapping[str, str]] = {}
    """What to write instead of the names that other libraries have, by these names."""

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            instead = type(self)._instead.get(name)
            if instead is None:
                return object.__getattribute__(self, name)  # raises the usual AttributeError
            fault = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{fault}. Write {instead}.")


# What to write instead of names that the modules of other libraries have, by these names.
OF_MODULE: Mapping[str, str] = {
    **dict.fromkeys(
        ("Llama", "LLM", "Model", "Client", "AsyncClient", "OpenAI", "AsyncOpenAI", "pipeline"),
        'localspec.load("model.gguf")',
    ),
    **dict.fromkeys(
        ("generate", "chat", "complete"),
        'localspec.load("model.gguf").generate("Hi")',
    ),
    "embed": 'localspec.load_embedder("model.gguf")',
    "list": "localspec.list_models()",
    "pull": 'localspec.download("demo")',
}


def _replacement_for(name: str, known: Sequence[str]) -> str:
    """What to write instead of an unknown keyword, in sentences; empty without a suggestion.

    Args:
        name: The unknown keyword.
        known: The keywords that the call takes.
    """
    # A name that is not foreign may be localspec's keyword of another call.
    row = _ROWS.get(name, _Row((), name))
    keyword = row.keyword
    if keyword in known:
        return f"It is {keyword} here. {row.advice}"
    if keyword in _call_of:
        return f"Write {_call_of[keyword]}…, {keyword}=…). {row.advice}"
    return row.advice or did_you_mean(name, known)


def _known_options(names: Sequence[str]) -> str:
    """The keywords that a call takes, in a sentence: all if they are few.

    Of many, the sentence has the most usual ones and the number of the others.
    """
    if len(names) <= _MOST_LISTED + 1:  # one more name takes no more room than "1 others"
        return f"Known options: {', '.join(names)}."
    usual = [name for name in _USUAL if name in names][:_MOST_LISTED]
    num_others = len(names) - len(usual)
    return f"Known options: {', '.join(usual)}, and {num_others} others: see docs/options.md."
