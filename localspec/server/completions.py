"""OpenAI's Completions and Chat Completions.

Also llama-server's endpoints for tokens of texts, for the chat template, and for properties.
"""

from __future__ import annotations

import abc
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from localspec._version import __version__
from localspec.chat.messages import checked_messages
from localspec.chat.prompt_source import MessagesSource, RawSource
from localspec.chat.template import NO_VARIABLES
from localspec.isolated.isolated_engine import IsolatedEngine
from localspec.sampling.logprobs import TokenLogprob, TokenLogprobs
from localspec.server.answering import Echo, Event, Finished, NewPiece
from localspec.server.encoding import sse_event
from localspec.server.fields import Fields
from localspec.server.form import (
    Form,
    Handler,
    engine_handler,
    extra_fields,
    input_tokens_handler,
    usage_of,
)
from localspec.server.question import (
    CLIENTS_NAMES,
    MOST_ANSWERS,
    MOST_LOGPROBS,
    FimPrompt,
    Input,
    Question,
    answer_form,
    answer_options,
    asked_logprobs,
    constraint_fields,
    max_tokens,
    openai_tools,
    template_variables,
)
from localspec.server.refusal import RequestError
from localspec.server.served_models import ServedModel
from localspec.speculative.metrics import WHY_OFF
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.reply import Reply, StepFacts
from localspec.tools.tool import CallPiece
from localspec.vocabulary import with_bos

_LOWEST_LOGPROB = -9999.0  # for an impossible token: JSON has no infinity


class OpenAIForm(Form):
    """The common part of Completions and Chat Completions.

    A choice is what OpenAI calls an answer, or a piece of one, in a response. A subclass makes
    the choices.
    """

    id_prefix: ClassVar[str]
    whole_type: ClassVar[str]
    """The field "object" of a whole response."""

    chunk_type: ClassVar[str]
    """The field "object" of a response in a stream."""

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        num_answers = fields.integer_between("n", 1, MOST_ANSWERS) or 1
        self.question = Question(
            fields,
            inputs,
            options,
            variables=variables,
            num_answers=num_answers,
        )
        self._has_usage = bool(fields.object("stream_options").flag("include_usage"))
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    @abc.abstractmethod
    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        """The choice of a whole answer."""

    @abc.abstractmethod
    def _piece_choice(self, new_piece: NewPiece) -> dict[str, Any] | None:
        """The choice of a piece in a stream; None if the piece has nothing to send."""

    @abc.abstractmethod
    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        """A choice without text.

        Args:
            number: the index of the answer.
            finished: the end of the answer, whose reason the choice has; None before the end.
        """

    def body(self, finished: Sequence[Finished]) -> Any:
        """The response with all answers, to be written as JSON."""
        choices = [self._whole_choice(answer) for answer in finished]
        return {
            **self._response(self.whole_type, choices),
            "usage": self._usage(finished),
            **self._extra_fields(finished[-1].reply),
        }

    def text_for(self, event: Event) -> str:
        """The event of the stream for something that happened; "" if it says nothing."""
        if isinstance(event, NewPiece):
            choice = self._piece_choice(event)
            if choice is None:
                return ""
            return self._chunk([choice])
        if isinstance(event, Finished):
            choice = self._empty_choice(event.number, event)
            return self._chunk([choice], **self._extra_fields(event.reply))
        return self._chunk([self._empty_choice(0, None)], **event.field)

    def end(self, finished: Sequence[Finished]) -> str:
        """The end of the stream: the numbers of tokens if they are wanted, and [DONE]."""
        done = sse_event("[DONE]")
        if self._has_usage:
            return self._chunk([], usage=self._usage(finished)) + done
        return done

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        return usage_of(finished, self.question)

    def _extra_fields(self, reply: Reply) -> dict[str, Any]:
        return extra_fields(reply)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """The event of a response in a stream.

        Args:
            choices: the response's choices.
            more: further fields of the response.
        """
        chunk = self._response(self.chunk_type, choices)
        if self._has_usage:
            chunk["usage"] = None  # the protocol demands the field in every response
        return sse_event({**chunk, **more})

    def _response(self, type_name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """The fields that a whole response and one in a stream share."""
        return {
            "id": self._id,
            "object": type_name,
            "created": self._created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
            "choices": choices,
        }


class Completion(OpenAIForm):
    """A request to /v1/completions, and its answer.

    With the field "echo" the answer begins with its prompt, and has log-probabilities of the
    prompt's tokens if it has any. Then "max_tokens" may be 0, for programs that only rate a
    text: one token is computed, but not sent.
    """

    id_prefix = "cmpl"
    whole_type = "text_completion"
    chunk_type = "text_completion"

    def __init__(self, fields: Fields) -> None:
        options = openai_options(fields)
        limit = max_tokens(fields, "max_tokens", "n_predict")
        echoes = bool(fields.flag("echo"))
        self._only_echoes = echoes and limit == 0
        if self._only_echoes:
            limit = 1
        options["max_tokens"] = limit
        options["logprobs"] = fields.integer_between("logprobs", 0, MOST_LOGPROBS)
        inputs = _inputs(fields)
        has_gaps = any(isinstance(prompt, FimPrompt) for prompt in inputs)
        if echoes and has_gaps:
            fields.refuse("echo", "Leave it out, or the suffix.")
        super().__init__(fields, inputs, options)
        self.question.echoes = echoes
        # By the index of an answer: the offset in characters at which its next token begins,
        # counted from the beginning of its prompt.
        self._offsets: dict[int, int] = {}

    def echo_text(self, echo: Echo) -> str:
        """The event of the stream for a prompt before its answer."""
        choice = self._empty_choice(echo.number, None)
        choice["text"] = echo.text
        choice["logprobs"] = self._echo_logprobs(echo)
        return self._chunk([choice])

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        """The choice of a whole answer, with its prompt before it if the client wants that."""
        text = ""
        logprobs = None
        if finished.echo is not None:
            text = finished.echo.text
            logprobs = self._echo_logprobs(finished.echo)
        if not self._only_echoes:
            text += finished.reply.text
            answer_logprobs = self._logprob_lists(finished.number, finished.reply.logprobs)
            logprobs = _joined_lists(logprobs, answer_logprobs)
        choice = self._empty_choice(finished.number, finished)
        return {**choice, "text": text, "logprobs": logprobs}

    def _piece_choice(self, new_piece: NewPiece) -> dict[str, Any] | None:
        """The choice of a piece in a stream; None if there is nothing to send."""
        text = new_piece.piece.text
        has_content = bool(text) or new_piece.logprobs is not None
        if self._only_echoes or not has_content:
            return None
        choice = self._empty_choice(new_piece.number, None)
        choice["text"] = text
        choice["logprobs"] = self._logprob_lists(new_piece.number, new_piece.logprobs)
        return choice

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        """A choice without text, with the reason of the answer's end if it has ended."""
        reason = _finish_reason(finished)
        if finished is not None and self._only_echoes:
            reason = "length"
        return {
            "index": number,
            "text": "",
            "logprobs": None,
            "finish_reason": reason,
        }

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        usage = super()._usage(finished)
        if self._only_echoes:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def _echo_logprobs(self, echo: Echo) -> dict[str, list[Any]] | None:
        """The log-probabilities of a prompt's tokens, see `_logprob_lists`.

        The first token has none. The answer's first token gets the prompt's end as its offset.
        Returns None if log-probabilities are not wanted.
        """
        self._offsets[echo.number] = 0  # of the second token, if the first is a begin token
        if echo.text.startswith(echo.first):
            self._offsets[echo.number] = len(echo.first)
        lists = self._logprob_lists(echo.number, echo.logprobs)
        self._offsets[echo.number] = len(echo.text)
        if lists is None:
            return None
        first: dict[str, list[Any]] = {
            "tokens": [echo.first],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }
        return _joined_lists(first, lists)

    def _logprob_lists(
        self,
        number: int,
        logprobs: Sequence[TokenLogprobs] | None,
    ) -> dict[str, list[Any]] | None:
        """The log-probabilities of tokens as lists, in the shape of OpenAI's Completions.

        Args:
            number: the index of the answer. The offset of its next token moves on.
            logprobs: those of the next tokens; None if log-probabilities are not wanted.

        Returns:
            Lists of the same length with an item for each token, by their names; None if
            `logprobs` is None.
        """
        if logprobs is None:
            return None
        lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        offset = self._offsets.setdefault(number, self._prompt_length(number))
        for token in logprobs:
            lists["tokens"].append(token.text)
            logprob = token.before  # before temperature and filters
            lists["token_logprobs"].append(max(logprob, _LOWEST_LOGPROB))
            lists["top_logprobs"].append(_top_by_text(token))
            lists["text_offset"].append(offset)
            # `raw` has the bytes of a token whose text is not whole characters.
            token_bytes = token.raw.get(token.token_id, token.text.encode())
            offset += _num_characters(token_bytes)
        self._offsets[number] = offset
        return lists

    def _prompt_length(self, number: int) -> int:
        """The characters of an answer's prompt, or before its gap; 0 for a list of tokens."""
        prompt = self.question.inputs[number // self.question.num_answers]
        if isinstance(prompt, FimPrompt):
            return len(prompt.before)
        if isinstance(prompt, RawSource) and isinstance(prompt.prompt, str):
            return len(prompt.prompt)
        return 0


def _num_characters(data: bytes) -> int:
    """The number of characters that begin in a token's UTF-8 bytes.

    A token may have only some bytes of a character. Its first byte is any but 10xxxxxx.
    """
    return sum(byte & 0xC0 != 0x80 for byte in data)


def _finish_reason(finished: Finished | None) -> str | None:
    """Why an answer ended; None if it has not ended yet."""
    if finished is None:
        return None
    return finished.reply.finish_reason


def _top_by_text(token: TokenLogprobs) -> dict[str, float]:
    """The log-probabilities of the most probable tokens at a token's position, by their texts.

    If several of them have the same text, the most probable one counts.
    """
    by_text: dict[str, float] = {}
    for top in token.top_before:
        by_text.setdefault(top.text, max(top.logprob, _LOWEST_LOGPROB))
    return by_text


def _joined_lists(
    first: dict[str, list[Any]] | None,
    second: dict[str, list[Any]] | None,
) -> dict[str, list[Any]] | None:
    """The lists of a prompt and of its answer, each list of the answer after the prompt's.

    None stands for no lists.
    """
    if first is None:
        return second
    if second is None:
        return first
    return {name: items + second[name] for name, items in first.items()}


def openai_options(fields: Fields) -> dict[str, Any]:
    """The options of an answer that Completions, Chat Completions and llama-server share."""
    return {
        **answer_options(fields),
        **constraint_fields(fields),
        "stop": fields.texts("stop"),
    }


def _inputs(fields: Fields) -> list[Input]:
    """The prompts of a request; with the field "suffix", the gaps between each and the suffix.

    Raises:
        RequestError: a field is wrong, or the suffix is to follow token ids.
    """
    prompts = fields.prompts("prompt", MOST_ANSWERS, may_be_mixed=True)
    suffix = fields.text("suffix")
    inputs: list[Input] = []
    for prompt in prompts:
        if not suffix:
            inputs.append(RawSource(prompt))
        elif isinstance(prompt, str):
            inputs.append(FimPrompt(prompt, suffix))
        else:
            fields.refuse("prompt", "Give texts, where there is a suffix.")
    return inputs


class ChatCompletion(OpenAIForm):
    """A request to /v1/chat/completions, and its answer."""

    id_prefix = "chatcmpl"
    whole_type = "chat.completion"
    chunk_type = "chat.completion.chunk"

    def __init__(self, fields: Fields) -> None:
        if "audio" in fields or fields.texts("modalities") not in (None, ["text"]):
            raise RequestError("the answer would be audio", "Ask for text.", param="modalities")
        options = openai_options(fields) | openai_tools(fields)
        options |= answer_form(fields.object("response_format"))
        options["max_tokens"] = max_tokens(
            fields,
            "max_completion_tokens",
            "max_tokens",
            "n_predict",
        )
        options["logprobs"] = asked_logprobs(fields, is_asked=fields.flag("logprobs"))
        prediction = fields.object("prediction").value("content")
        if prediction is not None:  # a text, or parts of one, as the content of a message
            (message,) = checked_messages([{"role": "user", "content": prediction}])
            options["prediction"] = str(message["content"])
        self._explains = bool(fields.flag("explain"))
        messages = checked_messages(fields.value("messages"))
        variables = template_variables(fields, effort=fields.text("reasoning_effort"))
        super().__init__(
            fields,
            [messages],
            options,
            variables=variables,
        )
        # The indices of the answers that have begun: the first choice of each has a role.
        self._begun_answers: set[int] = set()
        self._begun_calls: set[tuple[int, int]] = set()  # indices of an answer and of its call

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        """The choice of a whole answer, with its thoughts and calls."""
        reply = finished.reply
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text,
            "refusal": None,
        }
        if reply.thoughts:
            message["reasoning_content"] = reply.thoughts
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [
                _function_call(call.id, call.name, call.json) for call in reply.tool_calls
            ]
        return {
            "index": finished.number,
            "message": message,
            "logprobs": _logprob_content(reply.logprobs),
            "finish_reason": reply.finish_reason,
        }

    def _piece_choice(self, new_piece: NewPiece) -> dict[str, Any] | None:
        """The choice of a piece in a stream; None if there is nothing to send."""
        number = new_piece.number
        piece = new_piece.piece
        # A token whose text comes later, with the next token, is explained now.
        explains = self._explains and bool(piece.token_ids)
        if not (piece.text or piece.logprobs or piece.call or explains):
            return None
        choice = self._empty_choice(number, None)
        delta = choice["delta"]
        if piece.call is not None:
            delta["tool_calls"] = [self._call_delta(number, piece.call)]
        elif piece.is_thought:
            delta["reasoning_content"] = piece.text
        else:
            delta["content"] = piece.text
        choice["logprobs"] = _logprob_content(new_piece.logprobs)
        if explains:
            choice["provenance"] = piece.provenance.value
            if piece.step is not None:  # the piece is the first of a step
                choice["step"] = _step_facts(piece.step, new_piece.num_prompt_tokens)
        return choice

    def _call_delta(self, number: int, call: CallPiece) -> dict[str, Any]:
        """A piece of a call as clients get it; only the first piece has the call's id and name.

        Args:
            number: the index of the answer.
            call: the piece.
        """
        if (number, call.number) in self._begun_calls:
            return {"index": call.number, "function": {"arguments": call.json}}
        self._begun_calls.add((number, call.number))
        return {"index": call.number, **_function_call(call.id, call.name, call.json)}

    def _extra_fields(self, reply: Reply) -> dict[str, Any]:
        extra = super()._extra_fields(reply)
        if self._explains:
            extra["explanation"] = _explanation(reply)
        return extra

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        """A choice without text. The first choice of an answer has the role of its message."""
        delta = {}
        if number not in self._begun_answers:
            self._begun_answers.add(number)
            delta = {"role": "assistant", "content": ""}
        return {
            "index": number,
            "delta": delta,
            "logprobs": None,
            "finish_reason": _finish_reason(finished),
        }


def chat_input_tokens(fields: Fields) -> Handler:
    """The handler of a request to /v1/chat/completions/input_tokens.

    Its response is the number of tokens in the prompt.
    """
    messages = checked_messages(fields.value("messages"))
    variables = template_variables(fields, effort=fields.text("reasoning_effort"))
    return input_tokens_handler(fields, messages, openai_tools(fields), variables)


def _step_facts(step: StepFacts, num_prompt_tokens: int) -> dict[str, Any]:
    """The facts about a step of an answer, for clients that ask for an explanation.

    Args:
        step: the step.
        num_prompt_tokens: all tokens of the answer's prompt.
    """
    draft_off = None
    if step.draft_off is not None:
        draft_off = WHY_OFF[step.draft_off]
    return {
        "prompt_tokens": num_prompt_tokens,
        "drafted": step.num_drafted,
        "accepted": step.num_accepted,
        "threads": step.num_threads,
        "draft_off": draft_off,
    }


def _explanation(reply: Reply) -> dict[str, Any]:
    """The facts about the drafts of an answer, for clients that ask for an explanation."""
    stats = reply.stats
    longest_draft = 0
    for length, num_steps in enumerate(stats.steps_per_length):
        if num_steps > 0:
            longest_draft = length
    proposers = {}
    for kind, num_steps in stats.steps_per_proposer.items():
        proposers[kind.value] = {
            "steps": num_steps,
            "drafted": stats.drafted_per_proposer.get(kind, 0),
            "accepted": stats.accepted_per_proposer.get(kind, 0),
        }
    not_drafted = {}
    for reason, num_steps in stats.draft_off_steps.items():
        not_drafted[WHY_OFF[reason]] = num_steps
    outlook = None
    if stats.outlook is not None:
        outlook = asdict(stats.outlook)
    threads = None
    if stats.threads is not None:
        threads = asdict(stats.threads)
    return {
        # By the number of proposed tokens, from 0 on.
        "steps_per_length": stats.steps_per_length[: longest_draft + 1],
        # By the position in a draft.
        "drafted_per_position": stats.drafted_per_position[:longest_draft],
        "accepted_per_position": stats.accepted_per_position[:longest_draft],
        "proposers": proposers,
        "steps_not_drafted": not_drafted,
        # What the automatic policy expects of the next draft token: acceptance and break_even
        # from 0 to 1; and in step_ratios, by n, what a decode of n tokens costs.
        "outlook": outlook,
        "threads": threads,
        "exact": stats.exact,
        "exact_steps": stats.exact_steps,  # how they are bounded, in words
        "rule": reply.rule,
        "seed": reply.seed,
    }


def _function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool as clients get it, with its arguments as JSON."""
    function = {"name": name, "arguments": arguments}
    return {
        "id": call_id,
        "type": "function",
        "function": function,
    }


def _logprob_content(logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
    """The field "logprobs" of a choice, in the shape of Chat Completions."""
    if logprobs is None:
        return None
    return {"content": [logprob_object(token) for token in logprobs], "refusal": None}


def logprob_object(token: TokenLogprobs) -> dict[str, Any]:
    """The log-probabilities of a token and of the most probable ones at its position.

    They are those before sampling, in the shape of Chat Completions.
    """
    drawn = TokenLogprob(token.token_id, token.before, token.text)
    return {
        **_logprob_fields(drawn, token.raw),
        "top_logprobs": [_logprob_fields(top, token.raw) for top in token.top_before],
    }


def _logprob_fields(token: TokenLogprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    """The fields of one token and its log-probability.

    Args:
        token: the token.
        raw: the bytes of tokens by their ids, where these are not the bytes of the texts.
    """
    return {
        "id": token.token_id,
        "token": token.text,
        "logprob": max(token.logprob, _LOWEST_LOGPROB),
        "bytes": list(raw.get(token.token_id, token.text.encode())),
    }


def tokenize(fields: Fields) -> Handler:
    """The handler of a request to /tokenize.

    Its response is the token ids of a text, with the text of each if the request asks for it.
    Of a token that is no whole characters, it has the bytes instead.
    """
    text = fields.text("content") or ""
    parses_special = fields.flag("parse_special") is not False
    adds_bos = fields.flag("add_special")
    returns_pieces = fields.flag("with_pieces")

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        tokens = engine.tokenize(text, special=parses_special)
        if adds_bos:
            tokens = with_bos(tokens, engine.vocabulary)
        if not returns_pieces:
            return {"tokens": tokens}
        if len(tokens) > engine.context_length:  # each piece takes a call of the engine
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"with_pieces takes up to {engine.context_length}.",
                param="with_pieces",
            )
        pieces = []
        for token in tokens:
            piece = engine.detokenize([token], special=True)
            shown: str | list[int] = piece
            if "\ufffd" in piece:
                data = engine.vocabulary.piece(token)
                # Not for a U+FFFD of the text's own, nor for the name of a control token.
                if data not in (b"", piece.encode()):
                    shown = list(data)
            pieces.append({"id": token, "piece": shown})
        return {"tokens": pieces}

    return engine_handler(fields, compute)


def detokenize(fields: Fields) -> Handler:
    """The handler of a request to /detokenize. Its response is the text of token ids."""
    ids = fields.value("tokens")
    if not isinstance(ids, list):
        fields.refuse("tokens", "Give a list of token ids.")

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        return {"content": engine.detokenize(ids, special=True)}

    return engine_handler(fields, compute)


def apply_template(fields: Fields) -> Handler:
    """The handler of a request to /apply-template.

    Its response is the prompt that the chat template makes of messages, as a text.
    """
    messages = checked_messages(fields.value("messages"))
    effort = fields.text("reasoning_effort")
    variables = template_variables(fields, effort=effort)
    options = AnswerOptions.of(**openai_tools(fields))
    opens_answer = fields.flag("add_generation_prompt") is not False
    tool_use = options.tool_use(())
    source = MessagesSource(messages, tool_use, variables=variables)

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        return {"prompt": engine._prompt_text(source, opens_answer=opens_answer)}

    return engine_handler(fields, compute)


def props(model: ServedModel) -> dict[str, Any]:
    """The response to GET /props: the facts about a model, but not the folder of its file."""
    bos, eos = model.end_texts
    params = {}
    for name, value in asdict(model.sampling).items():
        if name != "logit_bias":
            clients_names = CLIENTS_NAMES.get(name, (name,))
            params[clients_names[-1]] = value  # llama-server's name is the last
    tool_template = {}
    if model.tool_template:
        tool_template["chat_template_tool_use"] = model.tool_template
    prompt_tokens_per_s = None
    if model.token_s is not None:
        prompt_tokens_per_s = 1.0 / model.token_s
    return {
        "default_generation_settings": {"params": params, "n_ctx": model.context_length},
        "total_slots": model.num_slots,
        "prompt_per_second": prompt_tokens_per_s,
        "model_alias": model.name,
        "model_path": model.file_name,
        "modalities": {
            "vision": model.sees,
            "video": False,
            "audio": False,
        },
        "chat_template": model.chat_template,
        **tool_template,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localspec {__version__}",
    }
