"""Facts about a loaded engine, as its child process tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.exactness import Exactness
from localspec.sampling.params import SamplingParams
from localspec.speculative.policy_api import Drafting
from localspec.speculative.shared_vocabulary import CommonTokens, SharedVocabulary

if TYPE_CHECKING:
    from localspec.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts that never change while an engine is open."""

    description: str
    sampling: SamplingParams
    context_length: int
    trained_context_length: int
    exactness: Exactness
    chat_template: str | None
    bos: int
    eos: int
    add_bos: bool
    shared_vocabulary: SharedVocabulary | CommonTokens | None
    drafting: Drafting
    parallel: int
    can_see: bool


_NAMES = (
    *("description", "sampling", "context_length", "trained_context_length", "exactness"),
    *("chat_template", "shared_vocabulary", "drafting", "parallel"),
)


def facts_of(engine: Engine) -> EngineFacts:
    """The facts about an engine."""
    vocabulary = engine.vocabulary
    return EngineFacts(
        **{name: getattr(engine, name) for name in _NAMES},
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        can_see=engine.vision is not None,
    )
