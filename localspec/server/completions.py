"""OpenAI's Completions and Chat Completions, and llama-server's own endpoints."""

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
    input_tokens_handler,
    own_fields,
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

    A subclass makes the choices: a whole choice, a piece of a choice, and an empty choice.
    """

    id_prefix: ClassVar[str]
    objects: ClassVar[tuple[str, str]]
    """The types of a whole answer and of a piece."""

    def __init__(
        self,
        fields: Fields,
        inputs: Sequence[Input],
        options: Mapping[str, Any],
        *,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        number = fields.whole_from("n", 1, MOST_ANSWERS) or 1
        self.question = Question(
            fields,
            inputs,
            options,
            variables=variables,
            num_answers=number,
        )
        self._has_usage = bool(fields.object("stream_options").flag("include_usage"))
        self._id = f"{self.id_prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    @abc.abstractmethod
    def _whole_choice(self, finished: Finished) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _choice(self, new: NewPiece) -> dict[str, Any] | None: ...

    @abc.abstractmethod
    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]: ...

    def body(self, finished: Sequence[Finished]) -> Any:
        choices = [self._whole_choice(answer) for answer in finished]
        own = self._own_fields(finished[-1].reply)
        return {
            **self._object(0, choices),
            "usage": self._usage(finished),
            **own,
        }

    def text_for(self, event: Event) -> str:
        if isinstance(event, NewPiece):
            choice = self._choice(event)
            if choice is None:
                return ""
            return self._chunk([choice])
        if isinstance(event, Finished):
            choice = self._empty_choice(event.number, event)
            return self._chunk([choice], **self._own_fields(event.reply))
        return self._chunk([self._empty_choice(0, None)], **event.field)

    def end(self, finished: Sequence[Finished]) -> str:
        done = sse_event("[DONE]")
        if self._has_usage:
            return self._chunk([], usage=self._usage(finished)) + done
        return done

    def _usage(self, finished: Sequence[Finished]) -> dict[str, Any]:
        return usage_of(finished, self.question)

    def _own_fields(self, reply: Reply) -> dict[str, Any]:
        return own_fields(reply)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        chunk = self._object(1, choices)
        if self._has_usage:
            chunk["usage"] = None
        return sse_event({**chunk, **more})

    def _object(self, number: int, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": self.objects[number],
            "created": self._created,
            "model": self.model.name,
            "system_fingerprint": self.model.fingerprint,
            "choices": choices,
        }


class Completion(OpenAIForm):
    """A request to /v1/completions, and its answer.

    With `echo` the prompt comes before the answer; with `logprobs`, the log-probabilities of
    its tokens, too. Then max_tokens may be 0, for programs that only rate texts: one token is
    computed, and not shown.
    """

    id_prefix = "cmpl"
    objects = ("text_completion", "text_completion")

    def __init__(self, fields: Fields) -> None:
        options = openai_options(fields)
        limit = max_tokens(fields, "max_tokens", "n_predict")
        echoes = bool(fields.flag("echo"))
        self._only_echoes = echoes and limit == 0
        options["max_tokens"] = 1 if self._only_echoes else limit
        options["logprobs"] = fields.whole_from("logprobs", 0, MOST_LOGPROBS)
        inputs = _inputs(fields)
        has_gaps = any(isinstance(given, FimPrompt) for given in inputs)
        if echoes and has_gaps:
            fields.refuse("echo", "Leave it out, or the suffix.")
        super().__init__(fields, inputs, options)
        self.question.echoes = echoes
        self._offsets: dict[int, int] = {}  # by answer: where its next token begins

    def echoed(self, echo: Echo) -> str:
        logprobs = self._echoed_lists(echo)
        choice = {**self._empty_choice(echo.number, None), "text": echo.text}
        return self._chunk([{**choice, "logprobs": logprobs}])

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
        text = ""
        before = None
        if finished.echo is not None:
            text = finished.echo.text
            before = self._echoed_lists(finished.echo)
        if self._only_echoes:
            whole = {"text": text, "logprobs": before}
        else:
            lists = self._logprob_lists(finished.number, finished.reply.logprobs)
            if before is not None:
                lists = _joined_lists(before, lists)
            whole = {"text": text + finished.reply.text, "logprobs": lists}
        return {**self._empty_choice(finished.number, finished), **whole}

    def _choice(self, new: NewPiece) -> dict[str, Any] | None:
        if self._only_echoes or not (new.piece.text or new.logprobs is not None):
            return None
        logprobs = self._logprob_lists(new.number, new.logprobs)
        more = {"text": new.piece.text, "logprobs": logprobs}
        return {**self._empty_choice(new.number, None), **more}

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
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

    def _echoed_lists(self, echo: Echo) -> dict[str, Any] | None:
        """The lists of a prompt's tokens. The first has no log-probability."""
        self._offsets[echo.number] = 0
        if echo.text.startswith(echo.first):  # else a begin token was added
            self._offsets[echo.number] = len(echo.first)
        lists = self._logprob_lists(echo.number, echo.logprobs)
        self._offsets[echo.number] = len(echo.text)  # where the answer begins
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
        found: Sequence[TokenLogprobs] | None,
    ) -> dict[str, Any] | None:
        """The lists of OpenAI's first endpoint, whose offsets count the prompt's characters."""
        if found is None:
            return None
        lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        offset = self._offsets.setdefault(number, self._num_before(number))
        for token in found:
            lists["tokens"].append(token.text)
            lists["token_logprobs"].append(max(token.before, _LOWEST_LOGPROB))
            lists["top_logprobs"].append(_best_by_text(token))
            lists["text_offset"].append(offset)
            data = token.raw.get(token.token_id, token.text.encode())
            # A character begins with any byte but 10xxxxxx.
            offset += sum(byte & 0xC0 != 0x80 for byte in data)
        self._offsets[number] = offset
        return lists

    def _num_before(self, number: int) -> int:
        """The characters of an answer's prompt; token ids count as none."""
        given = self.question.inputs[number // self.question.num_answers]
        if isinstance(given, FimPrompt):
            return len(given.before)
        if isinstance(given, RawSource) and isinstance(given.prompt, str):
            return len(given.prompt)
        return 0


def _finish_reason(finished: Finished | None) -> str | None:
    """Why an answer ended; None if it has not."""
    if finished is None:
        return None
    return finished.reply.finish_reason


def _best_by_text(found: TokenLogprobs) -> dict[str, float]:
    """The best tokens by their texts; of several with one text, the most probable one."""
    best: dict[str, float] = {}
    for top in found.top_before:
        best.setdefault(top.text, max(top.logprob, _LOWEST_LOGPROB))
    return best


def _joined_lists(
    before: Mapping[str, list[Any]],
    after: Mapping[str, list[Any]] | None,
) -> dict[str, Any]:
    """The lists of log-probabilities of two texts, the second after the first."""
    if after is None:
        return dict(before)
    return {name: values + after[name] for name, values in before.items()}


def openai_options(fields: Fields) -> dict[str, Any]:
    """The options that all forms of completions share."""
    stop = {"stop": fields.texts("stop")}
    return {
        **answer_options(fields),
        **constraint_fields(fields),
        **stop,
    }


def _inputs(fields: Fields) -> list[Input]:
    """The prompts, each to be filled in before the same `suffix` if there is one."""
    prompts = fields.prompts("prompt", MOST_ANSWERS, may_be_mixed=True)
    after = fields.text("suffix")
    if not after:
        return [RawSource(prompt) for prompt in prompts]
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        fields.refuse("prompt", "Give texts, where there is a suffix.")
    return [FimPrompt(text, after) for text in texts]


class ChatCompletion(OpenAIForm):
    """A request to /v1/chat/completions, and its answer."""

    id_prefix = "chatcmpl"
    objects = ("chat.completion", "chat.completion.chunk")

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
        predicted = fields.object("prediction").any("content")
        if predicted is not None:
            (said,) = checked_messages([{"role": "user", "content": predicted}])
            options["prediction"] = str(said["content"])
        self._explains = bool(fields.flag("explain"))
        messages = checked_messages(fields.any("messages"))
        variables = template_variables(fields, effort=fields.text("reasoning_effort"))
        super().__init__(
            fields,
            [messages],
            options,
            variables=variables,
        )
        self._has_role: set[int] = set()
        self._started_calls: set[tuple[int, int]] = set()  # numbers of answer and call

    def _whole_choice(self, finished: Finished) -> dict[str, Any]:
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

    def _choice(self, new: NewPiece) -> dict[str, Any] | None:
        piece = new.piece
        explains = self._explains and bool(piece.token_ids)  # a token may bring no text yet
        if not (piece.text or piece.logprobs or piece.call or explains):
            return None
        choice = self._empty_choice(new.number, None)
        if piece.call is not None:
            choice["delta"]["tool_calls"] = [self._call_delta(new.number, piece.call)]
        elif piece.is_thought:
            choice["delta"]["reasoning_content"] = piece.text
        else:
            choice["delta"]["content"] = piece.text
        choice["logprobs"] = _logprob_content(new.logprobs)
        if explains:
            choice["provenance"] = piece.provenance.value
            if piece.step is not None:  # the piece is the first of a step
                choice["step"] = _step_facts(piece.step, new.num_prompt_tokens)
        return choice

    def _call_delta(self, number: int, call: CallPiece) -> dict[str, Any]:
        """A piece of a call in the answer of that number; the first piece has its name."""
        if (number, call.number) in self._started_calls:
            return {"index": call.number, "function": {"arguments": call.json}}
        self._started_calls.add((number, call.number))
        return {"index": call.number, **_function_call(call.id, call.name, call.json)}

    def _own_fields(self, reply: Reply) -> dict[str, Any]:
        own = super()._own_fields(reply)
        if self._explains:
            return {**own, "explanation": _explanation(reply)}
        return own

    def _empty_choice(self, number: int, finished: Finished | None) -> dict[str, Any]:
        """A choice without text; the first choice of an answer has its role."""
        delta = {}
        if number not in self._has_role:
            self._has_role.add(number)
            delta = {"role": "assistant", "content": ""}
        return {
            "index": number,
            "delta": delta,
            "logprobs": None,
            "finish_reason": _finish_reason(finished),
        }


def chat_input_tokens(fields: Fields) -> Handler:
    """Answer a request to /v1/chat/completions/input_tokens: the tokens in the prompt."""
    messages = checked_messages(fields.any("messages"))
    variables = template_variables(fields, effort=fields.text("reasoning_effort"))
    return input_tokens_handler(fields, messages, openai_tools(fields), variables)


def _step_facts(step: StepFacts, num_prompt_tokens: int) -> dict[str, Any]:
    """Facts about a step, for clients that ask for an explanation."""
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
    """Facts about the drafts of an answer, and why there were no more, for clients that ask."""
    stats = reply.stats
    longest = 0
    for length, num_steps in enumerate(stats.steps_per_length):
        if num_steps > 0:
            longest = length
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
    return {
        # By the number of proposed tokens, from 0 on.
        "steps_per_length": stats.steps_per_length[: longest + 1],
        # By the position in a draft.
        "drafted_per_position": stats.drafted_per_position[:longest],
        "accepted_per_position": stats.accepted_per_position[:longest],
        "proposers": proposers,
        "steps_not_drafted": not_drafted,
        # What the automatic policy expects of the next draft token: acceptance and break_even
        # from 0 to 1, and step_ratios v(n).
        "outlook": None if stats.outlook is None else asdict(stats.outlook),
        "threads": None if stats.threads is None else asdict(stats.threads),
        "exact": stats.exact,
        "exact_steps": stats.exact_steps,
        "rule": reply.rule,
        "seed": reply.seed,
    }


def _function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "id": call_id,
        "type": "function",
        "function": function,
    }


def _logprob_content(found: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"content": [logprob_object(token) for token in found], "refusal": None}


def logprob_object(found: TokenLogprobs) -> dict[str, Any]:
    """A token's log-probability, and the best ones at its position, as OpenAI has them."""
    own = TokenLogprob(found.token_id, found.before, found.text)
    return {
        **_one_logprob(own, found.raw),
        "top_logprobs": [_one_logprob(top, found.raw) for top in found.top_before],
    }


def _one_logprob(token: TokenLogprob, raw: Mapping[int, bytes]) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "token": token.text,
        "logprob": max(token.logprob, _LOWEST_LOGPROB),
        "bytes": list(raw.get(token.token_id, token.text.encode())),
    }


def tokenize(fields: Fields) -> Handler:
    """Answer a request to /tokenize: the token ids of a text, with their pieces if wanted."""
    text = fields.text("content") or ""
    special = fields.flag("parse_special") is not False
    has_bos = fields.flag("add_special")
    has_pieces = fields.flag("with_pieces")

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        tokens = engine.tokenize(text, special=special)
        if has_bos:
            tokens = with_bos(tokens, engine.vocabulary)
        if not has_pieces:
            return {"tokens": tokens}
        if len(tokens) > engine.context_length:  # each piece is a call of its own
            raise RequestError(
                f"the text has {len(tokens)} tokens",
                f"with_pieces takes up to {engine.context_length}.",
                param="with_pieces",
            )
        described = []
        for token in tokens:
            piece = engine.detokenize([token], special=True)
            described.append({"id": token, "piece": piece})
        return {"tokens": described}

    return engine_handler(fields, compute)


def detokenize(fields: Fields) -> Handler:
    """Answer a request to /detokenize: the text of token ids."""
    ids = fields.any("tokens")
    if not isinstance(ids, list):
        fields.refuse("tokens", "Give a list of token ids.")

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        return {"content": engine.detokenize(ids, special=True)}

    return engine_handler(fields, compute)


def apply_template(fields: Fields) -> Handler:
    """Answer a request to /apply-template: the text that the template makes of messages."""
    messages = checked_messages(fields.any("messages"))
    variables = template_variables(fields, effort=fields.text("reasoning_effort"))
    options = AnswerOptions.of(**openai_tools(fields))
    opens_answer = fields.flag("add_generation_prompt") is not False
    source = MessagesSource(messages, options.tool_use(()), variables=dict(variables))

    def compute(engine: IsolatedEngine) -> dict[str, Any]:
        return {"prompt": engine._prompt_text(source, opens_answer=opens_answer)}

    return engine_handler(fields, compute)


def props(model: ServedModel) -> dict[str, Any]:
    """The answer of GET /props: the facts about a model, but not where its file lies."""
    bos, eos = model.end_texts
    params = {}
    for name, value in asdict(model.sampling).items():
        if name != "logit_bias":
            clients_name = CLIENTS_NAMES.get(name, (name,))[-1]
            params[clients_name] = value
    more = {}
    if model.tool_template:
        more["chat_template_tool_use"] = model.tool_template
    return {
        "default_generation_settings": {"params": params, "n_ctx": model.context_length},
        "total_slots": model.num_slots,
        "prompt_per_second": None if model.token_s is None else 1.0 / model.token_s,
        "model_alias": model.name,
        "model_path": model.file_name,
        "modalities": {
            "vision": model.sees,
            "video": False,
            "audio": False,
        },
        "chat_template": model.chat_template,
        **more,
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"localspec {__version__}",
    }
