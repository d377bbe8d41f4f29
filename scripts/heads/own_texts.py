"""Texts that a target writes itself, many at once, with the rows that heads read.

They are kept in a folder as they are finished, so that a run which was stopped goes on: a line
of texts.jsonl each, and NUMBER.npy, what libllama computed at its tokens.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.chat.prompt import PromptMaker
from localspec.errors import EngineError, OptionError
from localspec.evaluation.prompts import read_prompts
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import LlamaOptions
from localspec.llama.quirks.nextn import require_nextn_functions
from localspec.tools.tool import ToolUse

CONTEXT = 1024  # tokens of a text at most
_AT_ONCE = 16  # answers that are written side by side
_TEMPERATURES = 0.0, 0.8  # in turn: a head drafts for both
_MIN_SHARE = 0.05  # of the best token's probability: less likely ones are not drawn
_HELD_OUT = 10  # of so many prompts one
_LARGEST = 65504.0  # that float16 has
_TEXTS = "texts.jsonl"
_FIELDS = "prompt", "question", "turns"  # of a line of JSON, as published sets call them


class Writing(NamedTuple):
    """The model, its prompts, and the layers whose inputs are kept."""

    target: Path
    prompts: Sequence[list[int]]  # token ids
    answer_tokens: int  # at most
    layers: tuple[int, ...]
    num_threads: int


class Text(NamedTuple):
    """A prompt's tokens and its answer's, drawn at a temperature; it begins at answer_at.

    number: of the text; its prompt is number modulo the number of prompts. Its rows, (len - 1,
    layers + 1, width) float16 in its file: of each token but the last what the layers read, and
    the input of the output layer, which those of the prompt lack.
    """

    number: int
    temperature: float
    answer_at: int
    tokens: list[int]


def read_questions(paths: Sequence[Path]) -> list[str]:
    """The prompts of text files, one a line, and of files of JSON lines (.jsonl).

    A line of JSON is a string, or has the field "prompt", "question", or "turns", of which the
    first is asked. Raises OptionError for a file that has no such thing.
    """
    questions = []
    for path in paths:
        for number, line in enumerate(read_prompts(path), 1):
            questions.append(_question(line, path, number) if path.suffix == ".jsonl" else line)
    return questions


def _question(line: str, path: Path, number: int) -> str:
    try:
        found = json.loads(line)
        if isinstance(found, dict):
            found = next(found[name] for name in _FIELDS if name in found)
        text = found if isinstance(found, str) else found[0]
        if not isinstance(text, str) or not text.strip():
            raise ValueError("it is no text")
        return text
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise OptionError(
            f"line {number} of {path} has no prompt: {error!r}",
            f"Give each line a string, or an object with one of: {', '.join(_FIELDS)}.",
        ) from error


def prompts_of(target: Path, questions: Sequence[str]) -> list[list[int]]:
    """Token ids of each question in the target's chat template, or as it is without one."""
    model = LlamaModel.open(target, LlamaOptions(context_length=16))
    try:
        if model.chat_template is None:
            return [model.vocabulary.tokenize(question) for question in questions]
        maker = PromptMaker(model.vocabulary, model.chat_template, think=True)
        asked = [[{"role": "user", "content": question}] for question in questions]
        return [list(maker.prompt(messages, ToolUse()).tokens) for messages in asked]
    finally:
        model.close()


def read_texts(folder: Path) -> list[Text]:
    """The texts that `write_texts` has finished; a line that was cut off does not count."""
    path = folder / _TEXTS
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return [Text(*json.loads(line)) for line in lines]


def read_rows(folder: Path, text: Text) -> NDArray[np.float16]:
    """The rows of a text: see `Text`. They stay on the disk until they are used."""
    rows: NDArray[np.float16] = np.load(folder / f"{text.number}.npy", mmap_mode="r")
    return rows


def write_texts(
    writing: Writing, folder: Path, num_tokens: int, progress: Callable[[int], None]
) -> list[Text]:
    """Have the target answer until the folder has that many tokens of answers; all of them.

    progress: called with the number of tokens that there are. Raises EngineError.
    """
    texts = read_texts(folder)
    # Without the end of a line that was cut off.
    (folder / _TEXTS).write_text("".join(json.dumps(text) + "\n" for text in texts), "utf-8")
    count = sum(map(num_answered, texts))
    if count >= num_tokens:
        return texts
    done = {text.number for text in texts}
    numbers = (number for number in itertools.count() if number not in done)
    answers = _Writer(writing).answers(numbers)
    with (folder / _TEXTS).open("a", encoding="utf-8") as file, contextlib.closing(answers):
        while count < num_tokens:
            answer = next(answers)
            np.save(folder / f"{answer.text.number}.npy", np.concatenate(answer.rows))
            file.write(json.dumps(answer.text) + "\n")
            file.flush()
            texts.append(answer.text)
            count += num_answered(answer.text)
            progress(count)
    return texts


def held_out(texts: Sequence[Text], num_prompts: int) -> tuple[list[Text], list[Text]]:
    """Texts to learn from, and greedy ones to examine by: of a tenth of the prompts.

    Raises OptionError if there are none of either.
    """
    every = min(_HELD_OUT, num_prompts)
    learned = []
    kept_apart = []
    for text in texts:
        if text.number % num_prompts % every != every - 2:
            learned.append(text)
        elif text.temperature == 0.0:
            kept_apart.append(text)
    if not learned or not kept_apart:
        raise OptionError(
            f"{len(texts)} texts of {num_prompts} prompts are too few to hold some out",
            "Give at least ten prompts, and a larger number of --tokens.",
        )
    return learned, kept_apart


def num_answered(text: Text) -> int:
    """Tokens of its answer."""
    return len(text.tokens) - text.answer_at


@dataclass
class _Answer:
    """An answer in the making, with the rows of its tokens."""

    text: Text
    rng: np.random.Generator
    rows: list[NDArray[np.float16]] = field(default_factory=list)

    def take(self, logits: NDArray[np.float32]) -> int:
        """Draw the next token from a row of logits, and append it."""
        if self.text.temperature == 0.0:
            token = int(logits.argmax())
        else:
            scaled = (logits - logits.max()) / self.text.temperature
            (places,) = np.nonzero(scaled > np.log(_MIN_SHARE))
            chances = np.exp(scaled[places].astype(np.float64))
            token = int(self.rng.choice(places, p=chances / chances.sum()))
        self.text.tokens.append(token)
        return token


class _Writer:
    """A context of the target with a sequence for each answer that is being written."""

    def __init__(self, writing: Writing) -> None:
        self._asked = writing
        if writing.layers:
            self._functions = require_nextn_functions(reads_layers=True)
        target = writing.target
        self._model = llama_cpp.llama_model_load_from_file(
            str(target).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise EngineError(f"{target} cannot be loaded", "localspec explain says why.")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT * _AT_ONCE
        params.n_batch = CONTEXT
        params.n_seq_max = _AT_ONCE
        params.n_threads = params.n_threads_batch = writing.num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise EngineError(f"there is no memory for a context of {target}")
        for layer in writing.layers:
            self._functions.set_embeddings_layer_inp(self._context, layer, True)  # noqa: FBT003
        self._width = llama_cpp.llama_model_n_embd(self._model)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._batch = llama_cpp.llama_batch_init(CONTEXT, 0, 1)

    def answers(self, numbers: Iterator[int]) -> Generator[_Answer]:
        """The texts of these numbers, as they are finished; frees everything at its end."""
        active: dict[int, _Answer] = {}  # by sequence
        try:
            while True:
                for sequence in set(range(_AT_ONCE)) - set(active):
                    active[sequence] = self._begin(sequence, next(numbers))
                for sequence, answer in list(active.items()):
                    if self._is_over(answer.text):
                        del active[sequence]
                        yield answer
                if active:
                    self._decode(active, [1] * len(active))
        finally:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            llama_cpp.llama_model_free(self._model)

    def _begin(self, sequence: int, number: int) -> _Answer:
        """Read the text's prompt, of which a very long one's end, and draw the first token."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        prompts = self._asked.prompts
        which = number % len(prompts)
        turn = number // len(prompts)
        prompt = prompts[which][-(CONTEXT - self._asked.answer_tokens) :]
        temperature = _TEMPERATURES[(which + turn) % len(_TEMPERATURES)]
        text = Text(number, temperature, len(prompt), list(prompt))
        answer = _Answer(text, np.random.default_rng(number))
        self._decode({sequence: answer}, [len(prompt)])
        return answer

    def _is_over(self, text: Text) -> bool:
        is_end: bool = llama_cpp.llama_vocab_is_eog(self._vocab, text.tokens[-1])
        return is_end or num_answered(text) >= self._asked.answer_tokens

    def _decode(self, answers: Mapping[int, _Answer], sizes: Sequence[int]) -> None:
        """Decode so many of the last tokens of each, by sequence; keep rows, draw the next."""
        batch = self._batch
        count = 0
        for (sequence, answer), size in zip(answers.items(), sizes, strict=True):
            tokens = answer.text.tokens
            for position in range(len(tokens) - size, len(tokens)):
                batch.token[count] = tokens[position]
                batch.pos[count] = position
                batch.n_seq_id[count] = 1
                batch.seq_id[count][0] = sequence
                batch.logits[count] = position == len(tokens) - 1
                count += 1
        batch.n_tokens = count
        # Rows of the output layer cost logits of every token, which a prompt does not need.
        is_step = count == len(answers)
        llama_cpp.llama_set_embeddings(self._context, is_step)
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise EngineError(f"llama_decode failed with status {status}")
        rows = self._rows(count, is_step=is_step)
        begin = 0
        logits = _array(llama_cpp.llama_get_logits(self._context), len(sizes), self._vocab_size)
        for answer, size, law in zip(answers.values(), sizes, logits, strict=True):
            answer.rows.append(rows[begin : begin + size])
            answer.take(law)
            begin += size

    def _rows(self, count: int, *, is_step: bool) -> NDArray[np.float16]:
        """The rows of the last decode: see `Text`."""
        layers = self._asked.layers
        rows = np.zeros((count, len(layers) + 1, self._width), np.float16)
        given = [
            self._functions.get_embeddings_layer_inp(self._context, layer) for layer in layers
        ]
        if is_step:
            given.append(llama_cpp.llama_get_embeddings(self._context))
        for place, pointer in enumerate(given):
            rows[:, place] = _array(pointer, count, self._width).clip(-_LARGEST, _LARGEST)
        return rows


def _array(pointer: Any, *shape: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array(pointer, shape)
