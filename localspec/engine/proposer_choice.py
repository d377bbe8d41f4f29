"""Proposers and policies for a pair of models, chosen when an engine is opened."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localspec.engine.models import Models
from localspec.errors import DAMAGES, OptionError, PairError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile
from localspec.policy.threads import AdaptiveThreads
from localspec.speculative.heads import Blocks, Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.own_text import OwnText, TokenMaps
from localspec.speculative.policy_api import (
    Drafting,
    DraftOff,
    DraftPolicy,
    FixedDraftPolicy,
    FixedThreads,
    ProposerKind,
    ThreadPolicy,
)
from localspec.speculative.proposers import DraftModel, Forced, Proposer
from localspec.speculative.shared_vocabulary import (
    CommonTokens,
    SharedVocabulary,
    shared_vocabulary,
)
from localspec.speculative.translated import TranslatedDraft, TranslatedModel
from localspec.vocabulary import WholeVocabulary

if TYPE_CHECKING:
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel

_LARGEST_TRIED_BYTES = 100_000_000  # of weights; with more, a token is work for all cores
_NUM_THREAD_ROUNDS = 5
_THREADS_MARGIN = 0.9  # of the time with fewer threads, that more must not exceed

logger = logging.getLogger(__name__)


def choose_proposers(
    models: Models, drafting: Drafting
) -> tuple[SharedVocabulary | CommonTokens | None, list[Proposer], DraftOff | None]:
    """The vocabulary that target and draft share, if there is a draft; the proposers, the
    preferred first; why there are none.

    Raises PairError if they have too little in common.
    """
    if drafting.is_off:
        return None, [], DraftOff.SET_TO_ZERO
    target, draft, head, _ = models
    vocabulary = target.vocabulary
    shared, drafts = None, None
    if draft is not None:
        shared, drafts = _of_draft(draft, vocabulary)
    if target.max_rollback == 0:
        return shared, [], DraftOff.TARGET_CANNOT_ROLL_BACK
    proposers: list[Proposer] = []
    if head is not None:
        proposers.append(_of_head(head, vocabulary.is_end))
    if drafts is not None:
        proposers.append(drafts)
    if drafting.needs_forced:
        proposers.append(Forced(vocabulary.is_end))
    if drafting.needs_lookup:
        proposers.append(Lookup(vocabulary.is_end))
    without = DraftOff.NO_HEAD if drafting.proposer == "head" else DraftOff.NO_DRAFT
    return shared, proposers, None if proposers else without


def _of_draft(
    draft: LlamaModel, vocabulary: WholeVocabulary
) -> tuple[SharedVocabulary | CommonTokens, DraftModel]:
    """The vocabulary shared with the target (given), and the draft as a proposer.

    Raises PairError.
    """
    try:
        shared = shared_vocabulary(vocabulary, draft.vocabulary)
    except PairError:
        maps = TokenMaps(vocabulary, draft.vocabulary)
        translated = _translated(draft, maps, vocabulary.is_end)
        logger.warning(
            "%s and its target have %s",
            draft.name,
            maps.common,
            extra={"is_of_pair": True},
        )
        return maps.common, translated
    return shared, DraftModel(draft, shared, vocabulary.is_end)


def _translated(
    draft: LlamaModel, maps: TokenMaps, is_end: Callable[[int], bool]
) -> TranslatedDraft:
    model = TranslatedModel(draft, OwnText(maps, draft.vocabulary))
    return TranslatedDraft(model, is_end)


def proposers_beside(proposers: Sequence[Proposer], models: Models) -> list[Proposer]:
    """Proposers for another text. models: at its sequence; those of `proposers` are new."""
    is_end = models.target.vocabulary.is_end
    others: list[Proposer] = []
    for proposer in proposers:
        if isinstance(proposer, Forced | Lookup):
            others.append(type(proposer)(is_end))
        elif proposer.kind is ProposerKind.HEAD:
            assert models.head is not None
            others.append(_of_head(models.head, is_end))
        elif isinstance(proposer, TranslatedDraft):
            assert models.draft is not None
            others.append(_translated(models.draft, proposer.translated.maps, is_end))
        else:
            assert isinstance(proposer, DraftModel)
            assert models.draft is not None
            other = copy.copy(proposer)
            other.model = models.draft
            others.append(other)
    return others


def _of_head(head: LlamaHead | MedusaHeads, is_end: Callable[[int], bool]) -> Proposer:
    from localspec.llama.head import DflashHead  # loads libllama
    from localspec.llama.medusa import MedusaHeads

    if isinstance(head, DflashHead | MedusaHeads):
        return Blocks(head, is_end)
    return Head(head, is_end)


def answer_policy(
    drafting: Drafting | None, proposers: Sequence[Proposer]
) -> tuple[DraftPolicy | None, frozenset[ProposerKind] | None]:
    """An answer's own policy, and the only kinds that may propose in it.

    None is the engine's, and whoever can. Raises OptionError for a proposer that is not there.
    """
    if drafting is None:
        return None, None
    if drafting.is_off:
        return FixedDraftPolicy(0), None
    count = drafting.draft_tokens
    policy = None if count is None else FixedDraftPolicy(count)
    if drafting.proposer == "auto":
        return policy, None
    kind = ProposerKind(drafting.proposer)
    here = [proposer.kind.value for proposer in proposers]
    if kind not in here:
        raise OptionError(
            f"this engine has no proposer {kind.value!r}",
            f"It has {', '.join(here) or 'none'}; load it with proposer={kind.value!r}.",
        )
    return policy, frozenset([kind])


def weight_shares(models: Models) -> dict[ProposerKind, float]:
    """Least cost of a token of a draft or a head, in target-only steps.

    A decode reads all weights once, which is most of what it costs.
    """
    target, draft, head, _ = models
    found = {ProposerKind.DRAFT: draft, ProposerKind.HEAD: head}
    return {
        kind: model.num_weight_bytes / target.num_weight_bytes
        for kind, model in found.items()
        if model is not None
    }


def choose_policies(
    models: Models,
    drafting: Drafting,
    proposers: Sequence[Proposer],
    was_alone: Callable[[], bool],
) -> tuple[tuple[DraftPolicy, ThreadPolicy], Profile | None]:
    """The draft and thread policies, and the profile that keeps what they learn.

    The profile is None if a model has no identity. was_alone: see `AdaptiveThreads`.
    """
    threads = _thread_policy(models, was_alone)
    if drafting.is_off:
        return (FixedDraftPolicy(0), threads), None
    if drafting.draft_tokens is not None:
        return (FixedDraftPolicy(drafting.draft_tokens), threads), None
    shares = {
        kind: weight_shares(models).get(kind, 0.0) for kind in (p.kind for p in proposers)
    }
    policy = AdaptiveDraftPolicy(shares, models.target.num_threads)
    identities = [model.identity for model in models.all]
    known = [identity for identity in identities if identity is not None]
    if len(known) < len(identities):
        return (policy, threads), None
    profile = Profile(known)
    kept = profile.load()
    if kept is not None:
        try:
            policy.restore(kept)
            if isinstance(threads, AdaptiveThreads) and "threads" in kept:
                threads.restore(kept["threads"])
        except DAMAGES as error:
            logger.warning("%s is damaged and will be replaced: %s", profile.path, error)
            policy = AdaptiveDraftPolicy(shares, models.target.num_threads)
            threads = _thread_policy(models, was_alone)
    return (policy, threads), profile


def choose_threads(model: LlamaModel) -> None:
    """Let a small model decode with as few threads as are fastest; leave others alone.

    Threads that share a few milliseconds of work spend much of it waiting for each other: a
    model of some million parameters can be twice as fast on one core as on two.

    Takes some ten decodes of a token. The model's cache must be empty, and is again.
    """
    if model.num_weight_bytes > _LARGEST_TRIED_BYTES or model.context_length < 2:
        return
    most = model.num_threads
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count < most] + [most]
    best_s = dict.fromkeys(counts, float("inf"))
    for _ in range(_NUM_THREAD_ROUNDS):
        for count in counts:
            model.num_threads = count
            started = time.perf_counter()
            model.decode([0], 1)
            best_s[count] = min(best_s[count], time.perf_counter() - started)
            model.truncate(0)
    chosen = counts[0]
    for count in counts:
        if best_s[count] < _THREADS_MARGIN * best_s[chosen]:
            chosen = count
    model.num_threads = chosen


def _thread_policy(models: Models, was_alone: Callable[[], bool]) -> ThreadPolicy:
    """The target's number follows the load, and the others' with it, where nobody set them."""
    target, draft, head, _ = models
    if not target.may_change_threads:
        return FixedThreads(target.num_threads)
    most_of_draft = 0 if draft is None else draft.num_threads

    def use(count: int) -> None:
        target.num_threads = count
        if draft is not None and draft.may_change_threads:
            draft.num_threads = min(count, most_of_draft)
        if head is not None:
            head.num_threads = count

    return AdaptiveThreads(target.num_threads, use, was_alone)
