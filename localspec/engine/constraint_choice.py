"""An answer's options → its constraint: what the answer may say."""

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
    """Makes the constraint of each answer of a model.

    What depends only on the vocabulary is computed once.

    Args:
        vocabulary: The model's vocabulary.
        num_logits: The length of a row of logits.
    """

    def __init__(self, vocabulary: WholeVocabulary, num_logits: int) -> None:
        self._spelling = Spelling(vocabulary, num_logits)
        # Remembers the results for the last marks: those of thoughts, or triggers.
        cached = lru_cache(_MAX_CROSSINGS)
        self._crossing = cached(self._spelling.crossing)

    def constraint(
        self,
        options: AnswerOptions,
        prompt: Prompt,
        is_cancelled: CancelCheck = never,
    ) -> Constraint | None:
        """The constraint of the answer to a prompt; None if the answer is free.

        The constraint applies after the thoughts, and after the trigger if there is one. If the
        prompt ends with the beginning of the answer, that beginning is committed already.

        Args:
            options: The options of the answer.
            prompt: The prompt.
            is_cancelled: A mask that takes long raises Interrupted once this returns True.

        Raises:
            ConstraintError: If the constraint cannot be enforced, or does not allow the
                beginning of the answer.
        """
        spec, triggers = _requested_spec(options, prompt)
        if spec is None:
            return None
        # Whether the constraint covers the whole answer: its thoughts and calls are messages.
        has_frame = prompt.calls is not None and prompt.calls.have_frame
        constraint = self._guide.constraint(spec)
        if prompt.calls is not None and _are_json(prompt.calls):
            constraint = NumberBound(constraint, self._spelling)
        if triggers:
            # A character for each byte of UTF-8, as `Spelling` has texts.
            texts = tuple(text.encode().decode("latin-1") for text in triggers)
            start = Start(opening=None, between=frozenset(), may_end=True)
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
        num_before = len(prompt.tokens) - prompt.num_said
        beginning = prompt.tokens[num_before:]  # of the answer
        if constraint.validate(beginning) < len(beginning):
            raise ConstraintError(
                "the answer to continue does not fit the constraint",
                "Give the constraint that it was asked with, or ask again.",
            )
        constraint.commit(beginning)
        return constraint

    @cached_property
    def _guide(self) -> Guide:
        """Makes constraints from schemas, expressions and grammars."""
        return Guide(self._spelling)

    def _after_thoughts(
        self,
        inner: Constraint,
        thoughts: Thoughts,
        is_cancelled: CancelCheck,
        *,
        may_end: bool,
    ) -> Constraint:
        """A constraint that leaves the thoughts free, and is `inner` after them.

        `inner` itself if the answer can have no thoughts.

        Args:
            inner: The constraint of the text after the thoughts.
            thoughts: How the model opens and ends its thoughts.
            is_cancelled: See `constraint`.
            may_end: Whether the answer may end in its thoughts.
        """
        # The tokens with which thoughts begin, unless the prompt has opened them.
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

        Args:
            inner: The constraint of the text after the boundary.
            boundary: Watches for the boundary.
            marks: The texts of which one is the boundary. The tokens that contain one of them
                and more text are found once for the same marks.
            start: How the answer reaches the boundary, and leaves it.
            is_cancelled: See `constraint`.
        """
        crossing = self._crossing(marks)
        return AfterBoundary(inner, boundary, self._spelling, crossing, start, is_cancelled)


def _are_json(calls: Calls) -> bool:
    """Whether the constrained text is JSON, apart from the marks around calls."""
    form = calls.form
    use = calls.use
    if form.notation is not JsonArguments or calls.have_frame:
        return False
    # Calls without marks around them: the answer may be text instead of a call.
    may_be_text = form.is_bare and not use.must and use.answer_schema is None
    return not may_be_text


def _requested_spec(
    options: AnswerOptions,
    prompt: Prompt,
) -> tuple[ConstraintSpec | None, Sequence[str]]:
    """What an answer's options ask for.

    Returns:
        The specification of the constraint, None without one; and the triggers, texts after
        which the constraint starts. It starts at once if there is none.

    Raises:
        OptionError: For options that cannot be combined with tools.
    """
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
    # The grammar of calls also allows answers that fit the schema.
    return calls_spec(grammar.lark), grammar.triggers
