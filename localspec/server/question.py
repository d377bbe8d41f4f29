"""A client's question, in any protocol: the fields that protocols share, and its prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A text to be filled in behind `before` and before `after`."""

    before: str
    after: str
    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files, the least useful first. No text can name a token."""


Input = Sequence[Message] | RawSource | FimPrompt  # messages as `checked_messages` returns them

MOST_ANSWERS = 16  # to one request
MOST_LOGPROBS = 20  # of the best tokens at each position

# The method of `Fields` that reads a sampling option of each type.
_READERS = {float: "number", int: "whole", bool: "flag", tuple[str, ...]: "texts"}
_SAMPLING = {
    name: _READERS[kind]
    for name, kind in get_type_hints(SamplingKeywords).items()
    if name != "logit_bias"
}
# Options that OpenAI, llama.cpp or vLLM call by other names.
CLIENTS_NAMES = {
    "typical_p": ("typical_p", "typ_p"),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
    "penalty_last_n": ("repeat_last_n",),
}
_RECENT = ("penalty_last_n", "dry_penalty_last_n")
# Efforts that few templates know, as the nearest of low, medium and high.
_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
FUNCTION_TYPES = (None, "function")  # of tools that are functions
# Samplers that no draft can be verified against; clients also send them switched off.
_IMPOSSIBLE = ("xtc_probability", "mirostat")


TextBiases = Sequence[tuple[str, float]]
# The key of `TextBiases` among the options, until the vocabulary is there.
_TEXT_BIASES = "logit_bias_of_texts"


class Question:
    """A request for answers.

    model_name: as the client gave it. inputs: each gets num_answers answers; without any, the
    model is only loaded. options: given by keyword. use: the tools that may be called.
    variables: of the chat
    template, as `template_variables` gives them. streams: whether the client reads the answer
    piece by piece. keep_s: seconds without a question until the model is unloaded, from now on;
    None changes nothing. client: whose it is, as `AccessRules.client_of` has it, once that is
    known. echoes: whether the prompt comes in front of the answer, with the log-probabilities
    of its tokens if those of the answer are asked for. wants_progress: whether the client asks
    how far its prompt is read, however short that is.

    Raises RequestError and OptionError for a request that is wrong.
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
        self.inputs = inputs
        given = dict(options)
        self._text_biases: TextBiases = given.pop(_TEXT_BIASES, ())
        self.options = AnswerOptions.of(**given)
        self.use = self.options.tool_use(())
        self.variables = variables
        self.num_answers = num_answers
        self.streams = bool(fields.flag("stream"))
        self.client = ""
        self.keep_s = keep_s
        self.echoes = False
        self.wants_progress = bool(fields.flag("return_progress"))

    @property
    def needs_vocabulary(self) -> bool:
        """Whether the options have to be made by `options_for`."""
        return bool(self._text_biases)

    def options_for(self, vocabulary: Vocabulary) -> AnswerOptions:
        """The options, where a bias on a text is one on each token of it, as in llama-server.

        Args:
            vocabulary: The model's.
        """
        changes = dict(self.options.changes)
        biases: dict[Any, Any] = {}
        for text, bias in self._text_biases:
            for token in vocabulary.tokenize(text, parse_special=False):
                biases[token] = bias
        of_ids = changes.get("logit_bias")
        biases |= of_ids if isinstance(of_ids, Mapping) else {}
        return replace(self.options, changes={**changes, "logit_bias": biases})


def answer_options(fields: Fields) -> dict[str, Any]:
    """The options of sampling, seed and drafting, from the fields that protocols share."""
    found: dict[str, Any] = {}
    for ours, reader in _SAMPLING.items():
        for name in CLIENTS_NAMES.get(ours, (ours,)):
            value = getattr(fields, reader)(name)
            found[ours] = found.get(ours) if value is None else value
    for name in _RECENT:
        if found[name] == -1:  # all of the context, in llama.cpp
            found[name] = 2**31 - 1
    if found["top_k"] is not None:
        found["top_k"] = max(found["top_k"], 0)  # below 0 it is off elsewhere
    found["logit_bias"], text_biases = _logit_bias(fields)
    found[_TEXT_BIASES] = text_biases or None
    for name in _IMPOSSIBLE:
        if fields.number(name):
            SamplingParams().changed({name: fields.number(name)})  # raises, and says why
    seed = fields.whole("seed")
    # -1 is a fresh one elsewhere; other numbers below 0 are seeds there.
    found["seed"] = None if seed in (None, -1) else seed % (MAX_SEED + 1)
    found["rule"] = fields.text("rule")
    found["draft_tokens"] = fields.whole("draft_tokens")
    if fields.flag("speculative") is False:
        found["draft_tokens"] = 0
    found["proposer"] = fields.text("proposer")
    found["adapter_scales"] = adapter_scales(fields) or None
    fields.flag("cache_prompt")  # caches are always used: the answer is the same
    return {name: value for name, value in found.items() if value is not None}


def adapter_scales(fields: Fields) -> dict[int, float]:
    """Scales of adapters by their numbers, in llama-server's field; none where it is missing.

    Raises RequestError.
    """
    scales = {}
    for each in fields.objects("lora"):
        number = each.whole("id")
        if number is None:
            each.refuse("id", "Give the adapter's number; GET /lora-adapters lists them.")
        scales[number] = each.number("scale") or 0.0
    return scales


def template_variables(
    fields: Fields, *, thinks: bool | None = None, effort: str | None = None
) -> dict[str, Any]:
    """Variables of the chat template that a client sets. Raises RequestError.

    Args:
        thinks: Whether a reasoning model may think before it answers.
        effort: How much; as the protocol has them, None where it says nothing. Templates have
            several names for the first.
    """
    found: dict[str, Any] = {}
    if effort == "none":
        thinks = False
    elif effort is not None:
        found["reasoning_effort"] = _EFFORTS.get(effort, effort)
    if thinks is not None:
        found |= {"enable_thinking": thinks, "thinking": thinks}
    fields.object("chat_template_kwargs").flag("enable_thinking")  # refuses another type
    return {**found, **(fields.any("chat_template_kwargs") or {})}


def max_tokens(fields: Fields, *names: str) -> int | None:
    """The limit in the first of the fields that is present; -1 is none, as in llama.cpp."""
    given = [value for value in map(fields.whole, names) if value is not None]
    if given and given[0] != -1:
        return given[0]
    return None


def asked_logprobs(fields: Fields, *, is_asked: bool | None) -> int | None:
    """How many of the best tokens are wanted at each position; None if none are asked for."""
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
    if isinstance(given, list) and all(isinstance(p, list) and len(p) == 2 for p in given):
        pairs = [(token, isinstance(token, str), bias) for token, bias in given]
    elif isinstance(given, dict):
        pairs = [(key, not _ID.fullmatch(key), bias) for key, bias in given.items()]
    else:
        fields.refuse("logit_bias", "Map token ids or texts to numbers.")
    ids: dict[Any, Any] = {}
    texts: list[tuple[str, float]] = []
    for key, is_text, bias in pairs:
        number = (
            _BAN if bias is False else Fields({str(key): bias}, "logit_bias.").number(str(key))
        )
        if number is None:
            fields.refuse("logit_bias", f"Give {key!r:.80} a number, or false for a ban.")
        if not is_text:
            ids[str(key)] = number
        elif key:
            texts.append((key, number))
        else:
            fields.refuse("logit_bias", "Give texts that are not empty.")
    if len(texts) > MOST_TOKENIZED:
        fields.refuse("logit_bias", f"Name up to {MOST_TOKENIZED} texts, or use token ids.")
    return ids, texts


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
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "allowed_tools":
        choice = _allowed_functions(choice)
    is_parallel = fields.flag("parallel_tool_calls")
    return tool_options(tools, choice, ignored, kind, is_parallel=is_parallel)


def namespaced(fields: Fields) -> dict[str, dict[str, Any]]:
    """Name and namespace of the functions in namespaces, by their flat names."""
    return {
        flat_name(tool.get("name"), space): {"name": tool.get("name"), "namespace": space}
        for space, tool in _given_tools(fields)
        if space
    }


def _given_tools(fields: Fields) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Each tool, with the namespace that it is in, if any."""
    for tool in fields.objects("tools"):
        if tool.any("type") == "namespace":
            for each in tool.objects("tools"):
                yield tool.any("name"), each.values
        else:
            yield None, tool.values


def flat_name(name: object, namespace: object) -> str:
    """A function's name to the model, which knows no namespaces; as Codex joins the two."""
    own = str(name or "")
    if namespace:
        return f"{str(namespace).rstrip('_')}__{own.lstrip('_')}"
    return own


def _in_space(namespace: object, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if namespace:
        return {**tool, "name": flat_name(tool.get("name"), namespace)}
    return tool


def _allowed_functions(choice: Mapping[str, Any]) -> object:
    """A choice among tools, without ignored ones; "none" where no other is left."""
    given = choice.get("allowed_tools", choice)
    tools = given.get("tools") if isinstance(given, Mapping) else None
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        return choice  # which is refused
    kept = [each for each in tools if each.get("type") in FUNCTION_TYPES]
    named = [_in_space(each.get("namespace"), each) for each in kept]
    if named:
        return {"type": "allowed_tools", **given, "tools": named}
    return "none"


def tool_options(
    tools: Sequence[Mapping[str, Any]],
    choice: object,
    others: Sequence[object],
    named: object,
    *,
    is_parallel: bool | None,
) -> dict[str, Any]:
    """The options of tools and their choice; none where there is no tool to choose from.

    Args:
        others: Tools that are ignored.
        named: The tool that is chosen, if any; the choice of one of the others is ignored, too.
    """
    if named in others or (others and not tools and choice == "required"):
        choice = "auto"
    if not tools and choice in (None, "auto", "none"):
        return {}
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel}


def answer_form(form: Fields) -> dict[str, Any]:
    """The form of an answer, from the object that describes it. Raises RequestError.

    Its schema is in it, or, in Chat Completions, in an object within it.
    """
    kind = form.text("type")
    holder = form.object("json_schema") if "json_schema" in form else form
    schema = holder.any("schema")
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"json_schema": schema or {"type": "object"}}
    if kind != "json_schema" or not isinstance(schema, Mapping):
        form.refuse("type", "Choose text, json_object, or json_schema with its schema.")
    return {"json_schema": schema, "strict": holder.flag("strict") is True}


_MOST_CHOICES = 1000
# For each field of llama-server and vLLM, the keyword of the constraint that it gives.
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
    given = [
        (name, keyword, _constraint(fields, name, keyword))
        for name, keyword in _CONSTRAINTS.items()
    ]
    within = fields.object("structured_outputs")
    given += [
        (f"structured_outputs.{name}", keyword, _constraint(within, name, keyword))
        for name, keyword in _STRUCTURED.items()
    ]
    if within.flag("json_object"):
        given.append(("structured_outputs.json_object", "json_schema", {"type": "object"}))
    found = [each for each in given if each[2] is not None and each[2] != ""]
    if len(found) > 1:
        names = " and ".join(name for name, _, _ in found)
        raise RequestError(f"{names} are both given", "Give one of them.", param=found[1][0])
    if within.values and not any(name in within for name in (*_STRUCTURED, "json_object")):
        forms = ", ".join(_STRUCTURED)
        fields.refuse("structured_outputs", f"Give one of {forms}, or json_object.")
    return {keyword: value for _, keyword, value in found}


def _constraint(fields: Fields, name: str, keyword: str) -> Any:
    """The value of a field that gives a constraint; None if it is missing."""
    if keyword == "json_schema":
        return fields.any(name)
    if keyword == "choices":
        return fields.texts(name, _MOST_CHOICES)
    return fields.text(name)


def source_of(question: Question, given: Input, fim: FimTokens | None) -> PromptSource:
    """What the prompt of an input is made of, where the model is.

    Args:
        question: the input's.
        given: the input.
        fim: the model's tokens for a text to be filled in, if it has any.
    """
    options = question.options
    if isinstance(given, RawSource):
        return given
    if isinstance(given, FimPrompt):
        assert fim is not None  # as `Answering` has seen
        limit = options.max_tokens
        return FillInSource(given.before, given.after, fim, given.files, limit)
    return MessagesSource(
        given,
        question.use,
        variables=dict(question.variables),
        form=spec_of(options),
    )


def templated(
    messages: Sequence[Message], tools: Mapping[str, Any], variables: Mapping[str, Any]
) -> Callable[[IsolatedEngine], list[int]]:
    """A function that gives the tokens of the prompt, for requests that want no answer.

    Raises OptionError; the function TemplateError.

    Args:
        messages: The messages as `checked_messages` returns them.
        tools: Options by keyword.
        variables: The template's variables.
    """
    use = AnswerOptions.of(**tools).tool_use(())
    source = MessagesSource(messages, use, variables=dict(variables))
    return lambda engine: engine._make_prompt(source).prompt.tokens
