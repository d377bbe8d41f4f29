"""What the process of an `IsolatedEngine` says of its engine once it is loaded."""

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


def facts_of(engine: Engine) -> EngineFacts:
    """Those of an engine."""
    vocabulary = engine.vocabulary
    return EngineFacts(
        description=engine.description,
        sampling=engine.sampling,
        context_length=engine.context_length,
        trained_context_length=engine.trained_context_length,
        exactness=engine.exactness,
        chat_template=engine.chat_template,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        shared_vocabulary=engine.shared_vocabulary,
        drafting=engine.drafting,
        parallel=engine.parallel,
        can_see=engine.vision is not None,
    )
