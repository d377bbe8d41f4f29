"""Whether a trimmed file is used in place of the draft or the head that it was made of.

`gguf_file.trimmed` says what such a file has. It costs less for a drafted token and may be
accepted less often, so what counts is what both gained on this machine. What a token reads of
them says which is tried first; then the other is, until it was judged, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from localspec.gguf_file.architectures import HEADS_APART
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import head_facts
from localspec.gguf_file.header import Header
from localspec.gguf_file.trimmed import (
    checked_head_output,
    copy_path,
    found_trimmed,
    head_output_path,
    is_made_of,
    is_of_output,
    num_proposed,
    output_setting,
)
from localspec.gguf_file.trimming import output_bytes
from localspec.preflight.measured import MeasuredPair, measured_pair
from localspec.presets.preset import Role
from localspec.speculative.policy_api import ProposerKind

_LEAST_SPARED = 0.3  # share of a token's bytes: less hardly pays for what is not accepted
_LEAST_JUDGED = 64  # tokens of each
_ANOTHER = "it was made of another file than the one beside it; trim that one again"


@dataclass(frozen=True, slots=True)
class TrimmedChoice:
    """A trimmed file beside a draft or a head.

    header: of it, checked. is_output: whether it is the output layer of an MTP head, else a
    copy of the whole. is_used: whether it pays more. why: in words. is_of_another: whether it
    was made of another file; then it is not checked.
    """

    header: Header
    is_output: bool
    is_used: bool
    why: str
    is_of_another: bool = False

    @property
    def sentence(self) -> str:
        """What is used, and why."""
        return f"{self.header.path.name} is {'' if self.is_used else 'not '}used: {self.why}"


Choices = dict[Role, TrimmedChoice]


def trimmed_choices(headers: Mapping[Role, Header], *, with_head: bool) -> Choices:
    """The choice for each draft and head that has a trimmed file beside it.

    headers: of files on this machine, checked. with_head: whether a head in the target's file
    is used where there is none in a file of its own. Raises ModelFileError for a trimmed file
    that is damaged.
    """
    target, choices = headers.get("target"), {}
    for role, header in headers.items():
        if role == "target":
            has_head = with_head and "head" not in headers and head_facts(header) is not None
            if not has_head:
                continue
        choice = None if target is None else _choice(target, header)
        if choice is not None:
            choices[role] = choice
    return choices


def _choice(target: Header, drafter: Header) -> TrimmedChoice | None:
    facts = head_facts(drafter)
    is_output = facts is not None and facts.graph not in HEADS_APART
    path = head_output_path(drafter.path) if is_output else copy_path(drafter.path)
    found = found_trimmed(path)
    if found is None:
        return None
    if not is_made_of(found, drafter):
        return TrimmedChoice(found, is_output, is_used=False, why=_ANOTHER, is_of_another=True)
    found = checked_head_output(drafter) if is_output else check_model_file(path)
    assert found is not None
    of_trimmed, of_whole = _measured(target, drafter, found, is_output=is_output)
    whole_bytes = drafter.weights_bytes if facts is None else facts.num_read_bytes
    spared = (output_bytes(drafter) - output_bytes(found)) / whole_bytes
    if of_trimmed is not None and of_whole is not None:
        is_used = of_trimmed >= of_whole
        why = (
            f"measured here, drafting with it is {of_trimmed:.2f} times as fast as plain "
            f"decoding, and {of_whole:.2f} times with the whole one"
        )
    elif of_trimmed is not None or of_whole is not None:
        # Else what was tried first would stay, however seldom it is accepted.
        is_used = of_trimmed is None
        measured, not_yet = ("the whole one", "it") if is_used else ("it", "the whole one")
        why = f"{measured} was measured here, and now {not_yet} is to be"
    else:
        is_used = spared >= _LEAST_SPARED
        why = f"a drafted token reads {spared:.0%} less; neither of them was measured here yet"
    return TrimmedChoice(found, is_output, is_used, why)


def _measured(
    target: Header, drafter: Header, trimmed: Header, *, is_output: bool
) -> tuple[float | None, float | None]:
    """How fast drafting with each was, plain decoding is 1; None: not known."""
    kind = ProposerKind.DRAFT if head_facts(drafter) is None else ProposerKind.HEAD
    setting = output_setting(num_proposed(trimmed) or 0)
    pairs = (
        measured_pair(
            [target, drafter if is_output else trimmed],
            kind,
            is_block=False,
            is_wanted=lambda identity: not is_output or identity.endswith(setting),
        ),
        measured_pair(
            [target, drafter],
            kind,
            is_block=False,
            is_wanted=lambda identity: not is_of_output(identity),
        ),
    )
    of_trimmed, of_whole = (_judged(pair) for pair in pairs)
    return of_trimmed, of_whole


def _judged(pair: MeasuredPair | None) -> float | None:
    return pair.speedup if pair is not None and pair.num_judged >= _LEAST_JUDGED else None
