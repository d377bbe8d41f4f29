"""An answer's options → its constraint. All constraints of a model share what depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from localspec.constraints.after_boundary import AfterBoundary, Boundary, Start, Trigger
from localspec.constraints.guidance import Guide, NumberBound
from localspec.constraints.spec import ConstraintSpec, calls_spec
from localspec.constraints.spelling import Spelling
from localspec.errors import ConstraintError, OptionError
from localspec.streaming.answer_options import AnswerOptions, spec_of
from localspec.streaming.cancellation import CancelCheck, never
from localspec.streaming.thinking import HeadTrigger, Thoughts, ThoughtsEnd
from localspec.streaming.thought_families import TextKind
from localspec.tools.arguments import JsonArguments

if TYPE_CHECKING:
    from localspec.sampling.constraint import Constraint
    from localspec.streaming.answer_text import Prompt
    from localspec.tools.grammar import Calls
    from localspec.vocabulary import WholeVocabulary

_MAX_CROSSINGS = 8  # kept at once: triggers come from requests


class Constrainer:
    """Makes the constraint of each answer; keeps what depends on the vocabulary alone."""

    def __init__(self, vocabulary: WholeVocabulary, num_logits: int) -> None:
        self._spelling = Spelling(vocabulary, num_logits)
        # The crossings of each family's marks, and of triggers.
        remember = lru_cache(_MAX_CROSSINGS)
        self._crossing = remember(self._spelling.crossing)

    def constraint(
        self,
        options: AnswerOptions,
        prompt: Prompt,
        is_cancelled: CancelCheck = never,
    ) -> Constraint | None:
        """The constraint of the answer to a prompt, if any.

        It applies after the thoughts and the trigger. Where the prompt has the beginning of the
        answer, that is committed already.

        Args:
            options: What the answer was asked with.
            prompt: Its prompt.
            is_cancelled: A mask that takes long raises Interrupted once this returns True.

        Raises:
            ConstraintError: If the constraint cannot be kept to, or the beginning of the answer
                does not fit it.
        """
        spec, triggers = _requested_spec(options, prompt)
        if spec is None:
            return None
        has_frame = prompt.calls is not None and prompt.calls.have_frame
        constraint = self._guide.constraint(spec)
        if prompt.calls is not None and _are_json(prompt.calls):
            constraint = NumberBound(constraint, self._spelling)
        if triggers:
            texts = tuple(text.encode().decode("latin-1") for text in triggers)
            start = Start(None, frozenset(), may_end=True)
            boundary: Boundary = Trigger(texts)
            if has_frame:
                boundary = HeadTrigger(prompt.thoughts, texts)
            constraint = self._after_boundary(constraint, boundary, texts, start, is_cancelled)
        if not has_frame:
            constraint = self._after_thoughts(
                constraint,
                prompt.thoughts,
                is_cancelled,
                may_end=bool(triggers),
            )
        said = prompt.tokens[len(prompt.tokens) - prompt.num_said :]
        if constraint.validate(said) < len(said):
            raise ConstraintError(
                "the answer to continue does not fit the constraint",
                "Give the constraint that it was asked with, or ask again.",
            )
        constraint.commit(said)
        return constraint

    @cached_property
    def _guide(self) -> Guide:
        return Guide(self._spelling)

    def _after_thoughts(
        self,
        inner: Constraint,
        thoughts: Thoughts,
        is_cancelled: CancelCheck,
        *,
        may_end: bool,
    ) -> Constraint:
        # Where the prompt opens no thoughts, they begin with a token of their own.
        openings = self._spelling.single(thoughts.openings)
        if thoughts.open_kind is None and not openings:
            return inner
        # Some models end their thoughts with one mark, and begin to speak with another.
        speech = self._spelling.single(thoughts.marks(TextKind.SPEECH))
        between = self._spelling.blanks | speech
        start = Start(openings or None, between, may_end)
        boundary = ThoughtsEnd(thoughts)
        return self._after_boundary(inner, boundary, thoughts.marks(), start, is_cancelled)

    def _after_boundary(
        self,
        inner: Constraint,
        boundary: Boundary,
        marks: tuple[str, ...],
        start: Start,
        is_cancelled: CancelCheck,
    ) -> AfterBoundary:
        """A constraint that leaves the text up to the boundary free, and is `inner` after it.

        `marks` are the texts that the boundary may consist of. A token may contain one of them
        and text after it: these tokens are found once for the same marks.
        """
        crossing = self._crossing(marks)
        return AfterBoundary(inner, boundary, self._spelling, crossing, start, is_cancelled)


def _are_json(calls: Calls) -> bool:
    """Whether the calls are JSON, apart from the marks around them."""
    form = calls.form
    use = calls.use
    is_free = form.is_bare and not use.must and use.answer_schema is None
    return form.notation is JsonArguments and not calls.have_frame and not is_free


def _requested_spec(
    options: AnswerOptions,
    prompt: Prompt,
) -> tuple[ConstraintSpec | None, Sequence[str]]:
    """The constraint that is asked for, and the texts after which it starts."""
    spec = spec_of(options)
    if prompt.calls is None or prompt.calls.grammar is None:
        return spec, options.triggers
    grammar = prompt.calls.grammar
    if spec is not None and spec.kind != "json_schema":
        raise OptionError(
            "an answer that may call tools cannot also be constrained by a grammar, regex or "
            "choices",
            "Leave one of them out; a JSON schema can be combined with tools.",
        )
    # The grammar of calls has answers that fit the schema among its own.
    return calls_spec(grammar.lark), grammar.triggers
