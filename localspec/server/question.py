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
    """A gap between two texts, which the model fills in (fill in the middle).

    A text that looks like a special token is read as plain text.
    """

    before: str
    after: str
    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files, the least useful first."""


# What an answer follows: messages as `checked_messages` returns them, a prompt, or a gap.
Input = Sequence[Message] | RawSource | FimPrompt

MOST_ANSWERS = 16  # to one request
MOST_LOGPROBS = 20  # most probable tokens at each position

# The method of `Fields` that reads a sampling option of each type.
_READERS: dict[Any, Callable[[Fields, str], Any]] = {
    float: Fields.number,
    int: Fields.integer,
    bool: Fields.flag,
    tuple[str, ...]: Fields.texts,
}
# The method of `Fields` that reads each sampling option, by our name of the option.
_SAMPLING_READERS: dict[str, Callable[[Fields, str], Any]] = {}
for _name, _type in get_type_hints(SamplingKeywords).items():
    if _name != "logit_bias":
        _SAMPLING_READERS[_name] = _READERS[_type]
# The fields for a sampling option that OpenAI, llama.cpp or vLLM call otherwise, by our name.
CLIENTS_NAMES = {
    "typical_p": ("typical_p", "typ_p"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "penalty_last_n": ("repeat_last_n",),
}
# Options that count recent tokens; -1 is the whole context in llama.cpp.
_NUMS_OF_RECENT = ("penalty_last_n", "dry_penalty_last_n")
_WHOLE_CONTEXT = 2**31 - 1  # the largest number of recent tokens
# Efforts that few templates know, each with the nearest of low, medium and high.
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
_ANY_OBJECT = {"type": "object"}  # the JSON schema of any object
FUNCTION_TYPES = (None, "function")  # the types of a tool that is a function
# Samplers that no draft can be verified against. Clients may send them if they are off.
_IMPOSSIBLE = ("xtc_probability", "mirostat")


TextBiases = Sequence[tuple[str, float]]
"""Texts, and what is added to the logits of the tokens of each."""

# The key of `TextBiases` in the options that `answer_options` returns.
_TEXT_BIASES = "logit_bias_of_texts"


class Question:
    """A request for answers, as all protocols have it.

    Args:
        fields: the request.
        inputs: the inputs, each of which is answered; without any, the model is only loaded.
        options: the answers' options by keyword: those of `answer_options`, and others.
        variables: variables of the chat template, as `template_variables` returns them.
        num_answers: the number of answers to each input.
        keep_s: after how many seconds without a question the model is unloaded, from this
            question on; None changes nothing.

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
        keywords = dict(options)
        self._text_biases: TextBiases = keywords.pop(_TEXT_BIASES, ())
        self.options = AnswerOptions.of(**keywords)
        self.use = self.options.tool_use(())
        """The tools that may be called: those of the options alone."""

        self.variables = variables
        self.num_answers = num_answers
        self.streams = bool(fields.flag("stream"))
        """Whether the client reads the answer piece by piece."""

        self.client = ""
        """The client whose question it is, as `AccessRules.client_of` returns it. The endpoint
        sets it."""

        self.keep_s = keep_s
        self.echoes = False
        """Whether the client gets the prompt before the answer, with the log-probabilities of
        its tokens if the options ask for any."""

        self.wants_progress = bool(fields.flag("return_progress"))
        """Whether the client asks how far its prompt is read, even if it is short."""

    @property
    def needs_vocabulary(self) -> bool:
        """Whether biases on texts are not in `options` yet: `options_for` adds them."""
        return bool(self._text_biases)

    def options_for(self, vocabulary: Vocabulary) -> AnswerOptions:
        """The options with the biases on texts, each put on all tokens of its text.

        llama-server does the same. A bias that names a token by its id wins.

        Args:
            vocabulary: the model's vocabulary, which splits the texts into tokens.
        """
        changes = dict(self.options.changes)
        biases: dict[Any, Any] = {}
        for text, bias in self._text_biases:
            for token in vocabulary.tokenize(text, parse_special=False):
                biases[token] = bias
        id_biases = changes.get("logit_bias")
        if isinstance(id_biases, Mapping):
            biases |= id_biases
        return replace(self.options, changes={**changes, "logit_bias": biases})


def answer_options(fields: Fields) -> dict[str, Any]:
    """The options of sampling, seed and drafting, from the fields that protocols share.

    Returns:
        The options by keyword, without those that the request does not set.

    Raises:
        RequestError: a field is wrong.
        OptionError: a sampler is asked for that no draft can be verified against.
    """
    options = _sampling_options(fields)
    id_biases, text_biases = _logit_biases(fields)
    options["logit_bias"] = id_biases
    options[_TEXT_BIASES] = text_biases or None
    for name in _IMPOSSIBLE:
        value = fields.number(name)
        if value:
            SamplingParams().changed({name: value})  # raises an OptionError that says why
    seed = fields.integer("seed")
    if seed == -1:  # in llama.cpp it asks for a random seed; other numbers below 0 are seeds
        seed = None
    if seed is not None:
        options["seed"] = seed % (MAX_SEED + 1)
    options["rule"] = fields.text("rule")
    options["draft_tokens"] = fields.integer("draft_tokens")
    if fields.flag("speculative") is False:
        options["draft_tokens"] = 0
    options["proposer"] = fields.text("proposer")
    options["adapter_scales"] = adapter_scales(fields) or None
    fields.flag("cache_prompt")  # read, but without effect: a cache never changes an answer
    return {name: value for name, value in options.items() if value is not None}


def _sampling_options(fields: Fields) -> dict[str, Any]:
    """All sampling options by our names; None for those that the request does not set."""
    options: dict[str, Any] = {}
    for our_name, read in _SAMPLING_READERS.items():
        options[our_name] = None
        for clients_name in CLIENTS_NAMES.get(our_name, (our_name,)):
            value = read(fields, clients_name)
            if value is not None:
                options[our_name] = value
    for name in _NUMS_OF_RECENT:
        if options[name] == -1:
            options[name] = _WHOLE_CONTEXT
    top_k = options["top_k"]
    if top_k is not None:
        options["top_k"] = max(top_k, 0)  # in other servers numbers below 0 are off, too
    return options


def adapter_scales(fields: Fields) -> dict[int, float]:
    """The scales of LoRA adapters by the adapters' numbers, from llama-server's field "lora".

    Returns {} if the field is missing. An adapter without a scale gets 0. Raises RequestError.
    """
    scales = {}
    for adapter in fields.objects("lora"):
        number = adapter.integer("id")
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
    """The variables of the chat template that a client sets. Raises RequestError.

    The field "chat_template_kwargs" wins over the arguments.

    Args:
        fields: the request.
        thinks: whether a reasoning model may think before it answers, by a field of the
            protocol; None if no field says so.
        effort: how much the model may think, by a field of the protocol, such as "low"; "none"
            forbids it. None if no field says so.
    """
    variables: dict[str, Any] = {}
    if effort == "none":
        thinks = False
    elif effort is not None:
        variables["reasoning_effort"] = _EFFORTS.get(effort, effort)
    if thinks is not None:  # templates have different names for this variable
        variables |= {"enable_thinking": thinks, "thinking": thinks}
    clients_variables = fields.object("chat_template_kwargs")
    clients_variables.flag("enable_thinking")  # only to refuse another type than a boolean
    return {**variables, **clients_variables.values}


def max_tokens(fields: Fields, *names: str) -> int | None:
    """The largest number of tokens in an answer; None for no limit.

    The first of the named fields that is present counts. As in llama.cpp, -1 is no limit.
    """
    # All fields are read, since each of them is refused if it is wrong.
    limits = [fields.integer(name) for name in names]
    for limit in limits:
        if limit == -1:
            return None
        if limit is not None:
            return limit
    return None


def asked_logprobs(fields: Fields, *, is_asked: bool | None) -> int | None:
    """For how many of the most probable tokens at each position log-probabilities are wanted.

    Args:
        fields: the request, whose field "top_logprobs" has the number.
        is_asked: whether the request asks for log-probabilities at all.

    Returns:
        The number, 0 if only those of the answer's own tokens are wanted; None if none are.
    """
    num_top = fields.integer_between("top_logprobs", 0, MOST_LOGPROBS)
    if is_asked:
        return num_top or 0
    return None


_BAN = float("-inf")
_ID = re.compile(r"-?[0-9]+")


def _logit_biases(fields: Fields) -> tuple[dict[str, float] | None, TextBiases]:
    """The biases on token ids, by the ids' digits, and the biases on texts.

    Clients send an object whose keys are ids or texts, or llama.cpp's list of pairs, where an
    id is a number, and a string is always a text. The bias `false` bans a token. Returns None
    and () if the field is missing.

    Raises:
        RequestError: the field is wrong.
    """
    biases = fields.value("logit_bias")
    if biases is None:
        return None, ()
    is_object = isinstance(biases, dict)
    pairs: Iterable[Sequence[Any]] = ()
    if is_object:
        pairs = biases.items()
    elif isinstance(biases, list) and all(map(_is_pair, biases)):
        pairs = biases
    else:
        fields.refuse("logit_bias", "Map token ids or texts to numbers.")
    id_biases: dict[str, float] = {}
    text_biases: list[tuple[str, float]] = []
    for key, value in pairs:
        bias = _read_bias(fields, key, value)
        is_text = isinstance(key, str)
        if is_object:
            is_text = not _ID.fullmatch(key)
        if not is_text:
            id_biases[str(key)] = bias
        elif key:
            text_biases.append((key, bias))
        else:
            fields.refuse("logit_bias", "Give texts that are not empty.")
    if len(text_biases) > MOST_TOKENIZED:
        fields.refuse("logit_bias", f"Name up to {MOST_TOKENIZED} texts, or use token ids.")
    return id_biases, text_biases


def _read_bias(fields: Fields, key: object, value: object) -> float:
    """The bias that the value of a key in "logit_bias" stands for. Raises RequestError."""
    if value is False:
        return _BAN
    bias = Fields({str(key): value}, "logit_bias.").number(str(key))
    if bias is None:
        fields.refuse("logit_bias", f"Give {key!r:.80} a number, or false for a ban.")
    return bias


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2


def openai_tools(fields: Fields) -> dict[str, Any]:
    """The options of tools, from a request of Chat Completions or Responses.

    A function in a namespace gets its `flat_name`. Tools that are no functions are ignored,
    since nothing here could run them; so is a choice of one of them. Raises RequestError.
    """
    functions: list[Mapping[str, Any]] = []
    ignored_types: list[object] = []
    for namespace, tool in _namespaces_and_tools(fields):
        if tool.get("type") in FUNCTION_TYPES:
            functions.append(_with_flat_name(namespace, tool))
        else:
            ignored_types.append(tool["type"])
    choice = fields.value("tool_choice")
    chosen_type = None
    if isinstance(choice, Mapping):
        chosen_type = choice.get("type")
    if chosen_type == "allowed_tools":
        choice = _allowed_functions(choice)
    is_parallel = fields.flag("parallel_tool_calls")
    return tool_options(
        functions,
        choice,
        ignored_types,
        chosen_type,
        is_parallel=is_parallel,
    )


def names_in_namespaces(fields: Fields) -> dict[str, dict[str, Any]]:
    """The fields "name" and "namespace" of each function in a namespace, by its `flat_name`."""
    names: dict[str, dict[str, Any]] = {}
    for namespace, tool in _namespaces_and_tools(fields):
        if namespace:
            name = tool.get("name")
            names[flat_name(name, namespace)] = {"name": name, "namespace": namespace}
    return names


def _namespaces_and_tools(fields: Fields) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Each tool of a request, after the name of its namespace, or None if it is in none.

    Raises:
        RequestError: a name is no string.
    """
    for tool in fields.objects("tools"):
        name = declared_name(tool)
        if tool.value("type") == "namespace":
            for inner in tool.objects("tools"):
                declared_name(inner)  # refuses a name that is no string
                yield name, inner.values
        else:
            yield None, tool.values


def declared_name(tool: Fields) -> str | None:
    """The name of a tool or a namespace in a request; None if it has none.

    Raises:
        RequestError: the name is no string.
    """
    if "function" in tool:  # as in Chat Completions
        return tool.object("function").text("name")
    return tool.text("name")


def flat_name(name: object, namespace: object) -> str:
    """A function's name for the model, which knows no namespaces: namespace__name.

    Codex joins them in this way, too. Without a namespace it is the name itself.
    """
    function_name = str(name or "")
    if not namespace:
        return function_name
    return f"{str(namespace).rstrip('_')}__{function_name.lstrip('_')}"


def _with_flat_name(namespace: object, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with its `flat_name` in place of its name."""
    if namespace:
        return {**tool, "name": flat_name(tool.get("name"), namespace)}
    return tool


def _allowed_functions(choice: Mapping[str, Any]) -> object:
    """A choice of the type "allowed_tools", with only those tools that are functions.

    Returns "none" if there is no function among them. A choice that is malformed is returned as
    it is: `AnswerOptions` refuses it.
    """
    # Chat Completions has the list in an object within the choice, Responses in the choice.
    holder = choice.get("allowed_tools", choice)
    tools = None
    if isinstance(holder, Mapping):
        tools = holder.get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        return choice
    functions = []
    for tool in tools:
        if tool.get("type") in FUNCTION_TYPES:
            functions.append(_with_flat_name(tool.get("namespace"), tool))
    if not functions:
        return "none"
    return {
        "type": "allowed_tools",
        **holder,
        "tools": functions,
    }


def tool_options(
    tools: Sequence[Mapping[str, Any]],
    choice: object,
    ignored: Sequence[object],
    chosen: object,
    *,
    is_parallel: bool | None,
) -> dict[str, Any]:
    """The options of an answer that say which tools the model may call, by keyword.

    Returns {} if there is no tool and no choice that needs one.

    Args:
        tools: the tools that the model may call.
        choice: the choice among them, as the request has it.
        ignored: names or types of the request's tools that are ignored.
        chosen: the name or the type of the tool that is chosen, None or "" if none is. A choice
            of an ignored tool is ignored, too; so is "required" if all tools are ignored.
        is_parallel: whether the model may make several calls at once; None if the request
            does not say.
    """
    has_only_ignored = not tools and bool(ignored)
    if chosen in ignored or (has_only_ignored and choice == "required"):
        choice = "auto"
    if not tools and choice in (None, "auto", "none"):
        return {}
    return {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": is_parallel,
    }


def answer_form(form: Fields) -> dict[str, Any]:
    """The options of an answer that give its form, by keyword; {} if it is text.

    Args:
        form: the object in the request that describes the form. Without fields it is text.

    Raises:
        RequestError: it describes no form that is known.
    """
    form_type = form.text("type")
    holder = schema_holder(form)
    schema = holder.value("schema")
    if form_type in (None, "text"):
        return {}
    if form_type == "json_object":
        return {"json_schema": schema or _ANY_OBJECT}
    if form_type != "json_schema" or not isinstance(schema, Mapping):
        form.refuse("type", "Choose text, json_object, or json_schema with its schema.")
    is_strict = holder.flag("strict") is True
    return {"json_schema": schema, "strict": is_strict}


def schema_holder(form: Fields) -> Fields:
    """The object that has the JSON schema of an answer's form.

    It is the form itself, or in Chat Completions the object "json_schema" in it.
    """
    if "json_schema" in form:
        return form.object("json_schema")
    return form


_MOST_CHOICES = 1000  # answers to choose from
# The keyword of the option for each field of llama-server and vLLM that constrains an answer.
_CONSTRAINTS = {
    "json_schema": "json_schema",
    "grammar": "grammar",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
}
# The same for the fields in vLLM's object "structured_outputs".
_STRUCTURED = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}


def constraint_fields(fields: Fields) -> dict[str, Any]:
    """The option that constrains an answer, from the fields of llama-server and vLLM.

    Returns:
        The option by its keyword; {} if no field constrains the answer.

    Raises:
        RequestError: a field has the wrong type, two of them are set, or "structured_outputs"
            has none of the fields that are known.
    """
    constraints = list(_constraints(fields, _CONSTRAINTS))
    structured = fields.object("structured_outputs")
    for name, keyword, value in _constraints(structured, _STRUCTURED):
        constraints.append((f"structured_outputs.{name}", keyword, value))
    if structured.flag("json_object"):
        constraints.append(("structured_outputs.json_object", "json_schema", _ANY_OBJECT))
    if len(constraints) > 1:
        names = [name for name, _, _ in constraints]
        raise RequestError(
            f"{' and '.join(names)} are both given",
            "Give one of them.",
            param=names[1],
        )
    known_names = (*_STRUCTURED, "json_object")
    if structured.values and not any(name in structured for name in known_names):
        forms = ", ".join(_STRUCTURED)
        fields.refuse("structured_outputs", f"Give one of {forms}, or json_object.")
    return {keyword: value for _, keyword, value in constraints}


def _constraints(fields: Fields, keywords: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Each constraint that is set: its field, the keyword of its option, and its value.

    Args:
        fields: the request, or its object "structured_outputs".
        keywords: the keyword of the option for each field to be read.
    """
    for name, keyword in keywords.items():
        if keyword == "json_schema":
            value = fields.value(name)
        elif keyword == "choices":
            value = fields.texts(name, _MOST_CHOICES)
        else:
            value = fields.text(name)
        if value not in (None, ""):
            yield name, keyword, value


def prompt_source(
    question: Question,
    question_input: Input,
    fim: FimTokens | None,
) -> PromptSource:
    """The source from which the process with the model makes the prompt of an input.

    Args:
        question: the question that has the input.
        question_input: one of the question's inputs.
        fim: the model's tokens for filling in a gap; None if it has none. Only a model that has
            them may get a `FimPrompt`.
    """
    options = question.options
    if isinstance(question_input, RawSource):
        return question_input
    if isinstance(question_input, FimPrompt):
        assert fim is not None
        gap = question_input
        return FillInSource(gap.before, gap.after, fim, gap.files, options.max_tokens)
    return MessagesSource(
        question_input,
        question.use,
        variables=dict(question.variables),
        form=spec_of(options),
    )


def prompt_maker(
    messages: Sequence[Message],
    tools: Mapping[str, Any],
    variables: Mapping[str, Any],
) -> Callable[[IsolatedEngine], list[int]]:
    """A function that has an engine make the prompt of messages, and returns its tokens.

    It is for requests that count tokens. The function raises TemplateError.

    Args:
        messages: the messages, as `checked_messages` returns them.
        tools: the options of tools by keyword, as `tool_options` returns them.
        variables: the template's variables.

    Raises:
        OptionError: an option is wrong.
    """
    options = AnswerOptions.of(**tools)
    source = MessagesSource(messages, options.tool_use(()), variables=dict(variables))
    return lambda engine: engine._make_prompt(source).prompt.tokens
