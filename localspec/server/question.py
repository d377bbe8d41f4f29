"""A client's question, in any protocol: the fields that protocols share, and its prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_type_hints

from localspec.chat.fill_in import FillInSource
from localspec.chat.prompt_source import MessagesSource, RawSource
from localspec.chat.template import NO_VARIABLES, Message
from localspec.gguf_file.header_vocabulary import FimTokens
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.sampling.params import SamplingKeywords, SamplingParams
from localspec.server.fields import MOST_TOKENIZED, Fields
from localspec.server.refusal import RequestError
from localspec.speculative.randomness import MAX_SEED
from localspec.streaming.answer_options import AnswerOptions, spec_of
from localspec.streaming.record import PromptSource
from localspec.vocabulary import Vocabulary


class FimPrompt(NamedTuple):
    """A gap to be filled in, after the text `before` and before the text `after`."""

    before: str
    after: str
    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files, the least useful first. No text can name a token."""


Input = Sequence[Message] | RawSource | FimPrompt  # messages as `checked_messages` returns them

MOST_ANSWERS = 16  # to one request
MOST_LOGPROBS = 20  # of the best tokens at each position

# The method of `Fields` that reads a sampling option of each type.
_READERS = {
    float: "number",
    int: "whole",
    bool: "flag",
    tuple[str, ...]: "texts",
}
_SAMPLING: dict[str, str] = {}
for _name, _kind in get_type_hints(SamplingKeywords).items():
    if _name != "logit_bias":
        _SAMPLING[_name] = _READERS[_kind]
# The names of options that OpenAI, llama.cpp or vLLM call otherwise.
CLIENTS_NAMES = {
    "typical_p": ("typical_p", "typ_p"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "penalty_last_n": ("repeat_last_n",),
}
_RECENT = ("penalty_last_n", "dry_penalty_last_n")
# Efforts that few templates know, each with the nearest of low, medium and high.
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
FUNCTION_TYPES = (None, "function")  # of tools that are functions
# Samplers that no draft can be verified against; clients also send them switched off.
_IMPOSSIBLE = ("xtc_probability", "mirostat")


TextBiases = Sequence[tuple[str, float]]
# The key of `TextBiases` among the options, until the vocabulary is there.
_TEXT_BIASES = "logit_bias_of_texts"


class Question:
    """A request for answers.

    Args:
        fields: the request.
        inputs: the inputs; without any, the model is only loaded.
        options: options of the answers, by keyword.
        variables: variables of the chat template, as `template_variables` returns them.
        num_answers: the number of answers to each input.
        keep_s: seconds without a question until the model is unloaded, from now on; None
            changes nothing.

    Raises:
        RequestError: a field is wrong.
        OptionError: an option is wrong.
    """

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
        num_answers: int = 1,
        keep_s: float | None = None,
    ) -> None:
        self.model_name = fields.text("model")
        """The model's name, as the client gave it."""

        self.inputs = inputs
        given = dict(options)
        self._text_biases: TextBiases = given.pop(_TEXT_BIASES, ())
        self.options = AnswerOptions.of(**given)
        self.use = self.options.tool_use(())
        """The tools that may be called."""

        self.variables = variables
        self.num_answers = num_answers
        self.streams = bool(fields.flag("stream"))
        """Whether the client reads the answer piece by piece."""

        self.client = ""
        """Whose question it is, as `AccessRules.client_of` returns it, once it is known."""

        self.keep_s = keep_s
        self.echoes = False
        """Whether the prompt comes before the answer. If log-probabilities are asked for, those
        of its tokens come, too."""

        self.wants_progress = bool(fields.flag("return_progress"))
        """Whether the client asks how far its prompt is read, even if it is short."""

    @property
    def needs_vocabulary(self) -> bool:
        """Whether the options have to be made by `options_for`."""
        return bool(self._text_biases)

    def options_for(self, vocabulary: Vocabulary) -> AnswerOptions:
        """The options. A bias on a text becomes one on each of its tokens, as in llama-server.

        Args:
            vocabulary: the model's.
        """
        changes = dict(self.options.changes)
        biases: dict[Any, Any] = {}
        for text, bias in self._text_biases:
            for token in vocabulary.tokenize(text, parse_special=False):
                biases[token] = bias
        of_ids = changes.get("logit_bias")
        if isinstance(of_ids, Mapping):
            biases |= of_ids
        return replace(self.options, changes={**changes, "logit_bias": biases})


def answer_options(fields: Fields) -> dict[str, Any]:
    """The options of sampling, seed and drafting, from the fields that protocols share."""
    options = _sampling_options(fields)
    options["logit_bias"], text_biases = _logit_bias(fields)
    options[_TEXT_BIASES] = text_biases or None
    for name in _IMPOSSIBLE:
        if fields.number(name):
            SamplingParams().changed({name: fields.number(name)})  # raises, and says why
    seed = fields.whole("seed")
    if seed == -1:  # a fresh seed elsewhere; other numbers below 0 are seeds there
        seed = None
    if seed is not None:
        options["seed"] = seed % (MAX_SEED + 1)
    options["rule"] = fields.text("rule")
    options["draft_tokens"] = fields.whole("draft_tokens")
    if fields.flag("speculative") is False:
        options["draft_tokens"] = 0
    options["proposer"] = fields.text("proposer")
    options["adapter_scales"] = adapter_scales(fields) or None
    fields.flag("cache_prompt")  # caches are always used: the answer is the same
    return {name: value for name, value in options.items() if value is not None}


def _sampling_options(fields: Fields) -> dict[str, Any]:
    """The options of sampling by our names, with None for those that are missing."""
    options: dict[str, Any] = {}
    for ours, reader in _SAMPLING.items():
        options[ours] = None
        for name in CLIENTS_NAMES.get(ours, (ours,)):
            value = getattr(fields, reader)(name)
            if value is not None:
                options[ours] = value
    for name in _RECENT:
        if options[name] == -1:  # the whole context, in llama.cpp
            options[name] = 2**31 - 1
    if options["top_k"] is not None:
        options["top_k"] = max(options["top_k"], 0)  # below 0 it is off elsewhere
    return options


def adapter_scales(fields: Fields) -> dict[int, float]:
    """The scales of adapters by their numbers, from llama-server's field; {} if it is missing.

    Raises RequestError.
    """
    scales = {}
    for adapter in fields.objects("lora"):
        number = adapter.whole("id")
        if number is None:
            adapter.refuse("id", "Give the adapter's number; GET /lora-adapters lists them.")
        scales[number] = adapter.number("scale") or 0.0
    return scales


def template_variables(
    fields: Fields,
    *,
    thinks: bool | None = None,
    effort: str | None = None,
) -> dict[str, Any]:
    """Variables of the chat template that a client sets. Raises RequestError.

    Args:
        fields: the request.
        thinks: whether a reasoning model may think before it answers; None if the protocol's
            fields do not say.
        effort: how much it may think, in the protocol's words; None if they do not say.
    """
    variables: dict[str, Any] = {}
    if effort == "none":
        thinks = False
    elif effort is not None:
        variables["reasoning_effort"] = _EFFORTS.get(effort, effort)
    if thinks is not None:  # templates have several names for it
        variables |= {"enable_thinking": thinks, "thinking": thinks}
    fields.object("chat_template_kwargs").flag("enable_thinking")  # refuses another type
    given = fields.any("chat_template_kwargs") or {}
    return {**variables, **given}


def max_tokens(fields: Fields, *names: str) -> int | None:
    """The limit in the first of the fields that is present; -1 is none, as in llama.cpp."""
    limits = [fields.whole(name) for name in names]  # all of them, since a wrong one is refused
    for limit in limits:
        if limit == -1:
            return None
        if limit is not None:
            return limit
    return None


def asked_logprobs(fields: Fields, *, is_asked: bool | None) -> int | None:
    """The number of best tokens that are wanted at each position; None if none are."""
    num_top = fields.whole_from("top_logprobs", 0, MOST_LOGPROBS)
    if is_asked:
        return num_top or 0
    return None


_BAN = float("-inf")
_ID = re.compile(r"-?[0-9]+")


def _logit_bias(fields: Fields) -> tuple[dict[Any, Any] | None, TextBiases]:
    """The biases of token ids, and those of texts.

    Clients send a map, where a key is an id or a text, or llama.cpp's list of pairs, where a
    string is always a text. The bias `false` is a ban.
    """
    given = fields.any("logit_bias")
    if given is None:
        return None, ()
    pairs: Iterable[Sequence[Any]] = ()
    if isinstance(given, list) and all(map(_is_pair, given)):
        pairs = given
    elif isinstance(given, dict):
        pairs = given.items()
    else:
        fields.refuse("logit_bias", "Map token ids or texts to numbers.")
    ids: dict[Any, Any] = {}
    texts: list[tuple[str, float]] = []
    for key, value in pairs:
        bias = _bias_of(fields, key, value)
        is_text = isinstance(key, str)
        if isinstance(given, dict):
            is_text = not _ID.fullmatch(key)
        if not is_text:
            ids[str(key)] = bias
        elif key:
            texts.append((key, bias))
        else:
            fields.refuse("logit_bias", "Give texts that are not empty.")
    if len(texts) > MOST_TOKENIZED:
        fields.refuse("logit_bias", f"Name up to {MOST_TOKENIZED} texts, or use token ids.")
    return ids, texts


def _bias_of(fields: Fields, key: object, value: object) -> float:
    if value is False:
        return _BAN
    bias = Fields({str(key): value}, "logit_bias.").number(str(key))
    if bias is None:
        fields.refuse("logit_bias", f"Give {key!r:.80} a number, or false for a ban.")
    return bias


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def openai_tools(fields: Fields) -> dict[str, Any]:
    """The tools of Chat Completions and Responses. Raises RequestError.

    Functions in a namespace have their `flat_name`. Other tools are ignored, and a choice of
    one of them: nothing here could run it.
    """
    tools: list[Mapping[str, Any]] = []
    ignored: list[object] = []
    for space, tool in _given_tools(fields):
        if tool.get("type") in FUNCTION_TYPES:
            tools.append(_in_space(space, tool))
        else:
            ignored.append(tool["type"])
    choice = fields.any("tool_choice")
    kind = None
    if isinstance(choice, Mapping):
        kind = choice.get("type")
    if kind == "allowed_tools":
        choice = _allowed_functions(choice)
    is_parallel = fields.flag("parallel_tool_calls")
    return tool_options(
        tools,
        choice,
        ignored,
        kind,
        is_parallel=is_parallel,
    )


def namespaced(fields: Fields) -> dict[str, dict[str, Any]]:
    """The name and the namespace of each function in a namespace, by its flat name."""
    spaces: dict[str, dict[str, Any]] = {}
    for space, tool in _given_tools(fields):
        if space:
            name = tool.get("name")
            spaces[flat_name(name, space)] = {"name": name, "namespace": space}
    return spaces


def _given_tools(fields: Fields) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Each tool, with the namespace that it is in, if any."""
    for tool in fields.objects("tools"):
        if tool.any("type") == "namespace":
            for inner in tool.objects("tools"):
                yield tool.any("name"), inner.values
        else:
            yield None, tool.values


def flat_name(name: object, namespace: object) -> str:
    """A function's name for the model, which knows no namespaces. Codex joins them so, too."""
    own = str(name or "")
    if namespace:
        return f"{str(namespace).rstrip('_')}__{own.lstrip('_')}"
    return own


def _in_space(namespace: object, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if namespace:
        return {**tool, "name": flat_name(tool.get("name"), namespace)}
    return tool


def _allowed_functions(choice: Mapping[str, Any]) -> object:
    """A choice among tools, without ignored tools; "none" if all of them are ignored."""
    given = choice.get("allowed_tools", choice)
    tools = None
    if isinstance(given, Mapping):
        tools = given.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        return choice  # it will be refused
    functions = []
    for tool in tools:
        if tool.get("type") in FUNCTION_TYPES:
            functions.append(_in_space(tool.get("namespace"), tool))
    if functions:
        return {
            "type": "allowed_tools",
            **given,
            "tools": functions,
        }
    return "none"


def tool_options(
    tools: Sequence[Mapping[str, Any]],
    choice: object,
    others: Sequence[object],
    named: object,
    *,
    is_parallel: bool | None,
) -> dict[str, Any]:
    """The options of tools and their choice; {} if there is no tool to choose from.

    Args:
        tools: the tools that the model may call.
        choice: the choice among them, as the request has it.
        others: tools that are ignored.
        named: the tool that is chosen, if any. A choice of an ignored tool is ignored, too.
        is_parallel: whether the model may make several calls at once; None if the request
            does not say.
    """
    has_no_choice = not tools and choice == "required"
    if named in others or (others and has_no_choice):
        choice = "auto"
    if not tools and choice in (None, "auto", "none"):
        return {}
    return {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": is_parallel,
    }


def answer_form(form: Fields) -> dict[str, Any]:
    """The form of an answer, from the object that describes it. Raises RequestError."""
    kind = form.text("type")
    holder = schema_holder(form)
    schema = holder.any("schema")
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"json_schema": schema or {"type": "object"}}
    if kind != "json_schema" or not isinstance(schema, Mapping):
        form.refuse("type", "Choose text, json_object, or json_schema with its schema.")
    return {"json_schema": schema, "strict": holder.flag("strict") is True}


def schema_holder(form: Fields) -> Fields:
    """The object that has the schema: the form, or in Chat Completions an object in it."""
    if "json_schema" in form:
        return form.object("json_schema")
    return form


_MOST_CHOICES = 1000
# For each field of llama-server and vLLM, the keyword of its constraint.
_CONSTRAINTS = {
    "json_schema": "json_schema",
    "grammar": "grammar",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
}
_STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}


def constraint_fields(fields: Fields) -> dict[str, Any]:
    """The form of an answer in the words of llama-server and vLLM: one keyword at most.

    Raises:
        RequestError: For another type, for two of these fields, and for a `structured_outputs`
            that has none of the known forms.
    """
    given = list(_constraints(fields, _CONSTRAINTS))
    within = fields.object("structured_outputs")
    for name, keyword, value in _constraints(within, _STRUCTURED):
        given.append((f"structured_outputs.{name}", keyword, value))
    if within.flag("json_object"):
        given.append(("structured_outputs.json_object", "json_schema", {"type": "object"}))
    if len(given) > 1:
        names = [name for name, _, _ in given]
        raise RequestError(
            f"{' and '.join(names)} are both given",
            "Give one of them.",
            param=names[1],
        )
    if within.values and not any(name in within for name in (*_STRUCTURED, "json_object")):
        forms = ", ".join(_STRUCTURED)
        fields.refuse("structured_outputs", f"Give one of {forms}, or json_object.")
    return {keyword: value for _, keyword, value in given}


def _constraints(fields: Fields, keywords: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """The name, the keyword and the value of each field that gives a constraint.

    Args:
        fields: the request, or the object with the constraints.
        keywords: the keyword of each field's constraint.
    """
    for name, keyword in keywords.items():
        if keyword == "json_schema":
            value = fields.any(name)
        elif keyword == "choices":
            value = fields.texts(name, _MOST_CHOICES)
        else:
            value = fields.text(name)
        if value is not None and value != "":
            yield name, keyword, value


def source_of(question: Question, given: Input, fim: FimTokens | None) -> PromptSource:
    """What the prompt of an input is made of, in the process that has the model.

    Args:
        question: the question that has the input.
        given: the input.
        fim: the model's tokens for a text to be filled in, if it has any.
    """
    options = question.options
    if isinstance(given, RawSource):
        return given
    if isinstance(given, FimPrompt):
        assert fim is not None  # `Answering` has checked it
        limit = options.max_tokens
        return FillInSource(given.before, given.after, fim, given.files, limit)
    return MessagesSource(
        given,
        question.use,
        variables=dict(question.variables),
        form=spec_of(options),
    )


def templated(
    messages: Sequence[Message],
    tools: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> Callable[[IsolatedEngine], list[int]]:
    """A function from an engine to the tokens of the prompt, for requests without an answer.

    The function raises TemplateError.

    Args:
        messages: the messages, as `checked_messages` returns them.
        tools: options by keyword.
        variables: the template's variables.

    Raises:
        OptionError: an option is wrong.
    """
    options = AnswerOptions.of(**tools)
    source = MessagesSource(messages, options.tool_use(()), variables=dict(variables))
    return lambda engine: engine._make_prompt(source).prompt.tokens
