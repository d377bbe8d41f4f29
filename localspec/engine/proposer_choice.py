"""Chooses the proposers and policies of an engine, and the policy of a single answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.engine.open_models import Models
from localspec.errors import DAMAGES, OptionError
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.profile import Profile, contents_of, shipped_acceptance
from localspec.policy.threads import AdaptiveThreads, counts_to_try
from localspec.speculative.heads import Blocks, Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.policy_api import (
    Drafting,
    DraftOff,
    DraftPolicy,
    FixedDraftPolicy,
    ProposerKind,
    ThreadPolicy,
)
from localspec.speculative.proposers import ConstraintProposer, DraftModel, Proposer
from localspec.speculative.shared_vocabulary import SharedVocabulary

if TYPE_CHECKING:
    from localspec.llama.head import LlamaHead
    from localspec.llama.medusa import MedusaHeads
    from localspec.llama.model import LlamaModel

_LARGEST_TRIED_BYTES = 100_000_000  # of weights; a larger model keeps all cores busy
_TRIED_THREADS = (1, 2, 4, 8, 16, 32)
_NUM_THREAD_ROUNDS = 5  # decodes with each number of threads, of which the fastest counts
_THREADS_MARGIN = 0.9  # more threads must take less than this share of the time of fewer

logger = logging.getLogger(__name__)


def choose_proposers(
    models: Models,
    drafting: Drafting,
    shared: SharedVocabulary | None,
) -> tuple[list[Proposer], DraftOff | None]:
    """The proposers of a lane in order of preference, and the reason if there are none.

    Args:
        models: The models, at the lane's sequence.
        drafting: What may draft.
        shared: The tokens that target and draft share; None without a draft.
    """
    if drafting.is_off:
        return [], DraftOff.SET_TO_ZERO
    if models.target.max_rollback == 0:
        return [], DraftOff.TARGET_CANNOT_ROLL_BACK
    is_end = models.target.vocabulary.is_end
    proposers: list[Proposer] = []
    if models.head is not None:
        proposers.append(_head_proposer(models.head, is_end))
    if models.draft is not None and shared is not None:
        proposers.append(DraftModel(models.draft, shared, is_end))
    if drafting.may_use(ProposerKind.FORCED):
        proposers.append(ConstraintProposer(is_end))
    if drafting.may_use(ProposerKind.LOOKUP):
        proposers.append(Lookup(is_end))
    if proposers:
        return proposers, None
    if drafting.proposer == "head":
        return proposers, DraftOff.NO_HEAD
    return proposers, DraftOff.NO_DRAFT


def _head_proposer(head: LlamaHead | MedusaHeads, is_end: Callable[[int], bool]) -> Proposer:
    """The proposer for a head. is_end: whether a token ends an answer."""
    from localspec.llama.head import DflashHead  # imported late: loads libllama
    from localspec.llama.medusa import MedusaHeads

    if isinstance(head, DflashHead | MedusaHeads):
        return Blocks(head, is_end)
    return Head(head, is_end)


def answer_policy(
    drafting: Drafting | None,
    proposers: Sequence[Proposer],
) -> tuple[FixedDraftPolicy | None, frozenset[ProposerKind] | None]:
    """The draft policy of one answer, and the kinds of proposers that it may use.

    Args:
        drafting: What may draft in this answer, and how much; None for the engine's.
        proposers: The proposers of the engine.

    Returns:
        The policy, None for the engine's; and the kinds, None for all.

    Raises:
        OptionError: If the engine lacks the proposer.
    """
    if drafting is None:
        return None, None
    if drafting.is_off:
        return FixedDraftPolicy(0), None
    policy = None
    if drafting.draft_tokens is not None:
        policy = FixedDraftPolicy(drafting.draft_tokens)
    if drafting.proposer == "auto":
        return policy, None
    kind = ProposerKind(drafting.proposer)
    available = [proposer.kind.value for proposer in proposers]
    if kind not in available:
        names = ", ".join(available) or "none"
        raise OptionError(
            f"this engine has no proposer {kind.value!r}",
            f"It has {names}; load it with proposer={kind.value!r}.",
        )
    return policy, frozenset([kind])


class Learning(NamedTuple):
    """A draft policy, with what earlier engines learned, and the file that keeps it."""

    policy: DraftPolicy

    profile: Profile | None
    """The file; None if drafting is fixed or a model has no identity."""

    threads: Mapping[str, Any]
    """What was learned of threads: see `ThreadPolicy.restore`. Empty if nothing was."""


def choose_policies(
    models: Models,
    drafting: Drafting,
    proposers: Sequence[Proposer],
    was_alone: Callable[[], bool],
) -> tuple[Learning, ThreadPolicy]:
    """The draft policy and the thread policy of a lane, with what was learned before.

    Args:
        models: The models, at the lane's sequence.
        drafting: What may draft, and how much.
        proposers: The lane's proposers.
        was_alone: See `AdaptiveThreads`.
    """
    thread_policy = _thread_policy(models, was_alone)
    learning = choose_draft_policy(models, drafting, proposers, models.target.num_threads)
    try:
        thread_policy.restore(learning.threads)
    except DAMAGES as error:
        logger.warning("what was learned of threads is damaged: %s", error)
        thread_policy = _thread_policy(models, was_alone)
    return learning, thread_policy


def choose_draft_policy(
    models: Models,
    drafting: Drafting,
    proposers: Sequence[Proposer],
    num_threads: int,
) -> Learning:
    """The draft policy of a lane, with what was learned before with these models.

    Other scales of the target's adapters count as other models.

    Args:
        models: The models, at the lane's sequence.
        drafting: What may draft, and how much.
        proposers: The lane's proposers.
        num_threads: Threads that the target had when it was opened.
    """
    if drafting.is_off:
        return Learning(FixedDraftPolicy(0), None, {})
    if drafting.draft_tokens is not None:
        return Learning(FixedDraftPolicy(drafting.draft_tokens), None, {})
    shares = _weight_shares(models, proposers)
    policy = AdaptiveDraftPolicy(shares, num_threads)
    identities = []
    for model in models.all:
        identity = model.identity
        if identity is None:
            return Learning(policy, None, {})
        identities.append(identity)
    profile = Profile(identities)
    learned = profile.load()
    if learned is None:
        shipped = shipped_acceptance(contents_of(identities))
        if shipped is not None:
            policy.expect(shipped)
        return Learning(policy, profile, {})
    try:
        policy.restore(learned)
        for proposer in proposers:
            if isinstance(proposer, Lookup):
                proposer.restore(learned.get("lookup", {}))
    except DAMAGES as error:
        logger.warning("%s is damaged and will be replaced: %s", profile.path, error)
        return Learning(AdaptiveDraftPolicy(shares, num_threads), profile, {})
    return Learning(policy, profile, learned.get("threads", {}))


def _weight_shares(models: Models, proposers: Sequence[Proposer]) -> dict[ProposerKind, float]:
    """The size of each proposer's weights as a share of the target's; 0 without weights.

    A decode mostly reads weights, so this is the least that a drafted token can cost, as a
    share of a target-only step.
    """
    shares = {proposer.kind: 0.0 for proposer in proposers}
    target_bytes = models.target.num_weight_bytes
    if models.draft is not None and ProposerKind.DRAFT in shares:
        shares[ProposerKind.DRAFT] = models.draft.num_weight_bytes / target_bytes
    if models.head is not None and ProposerKind.HEAD in shares:
        shares[ProposerKind.HEAD] = models.head.num_weight_bytes / target_bytes
    return shares


def choose_threads(model: LlamaModel) -> None:
    """Set a small model's number of threads to the smallest that is about as fast as any.

    Threads that share a few milliseconds of work mostly wait for each other: a model of a few
    million parameters can be twice as fast on one core as on two. The model's present number
    is the largest that is tried.

    The KV cache must be empty before, and is empty after.
    """
    # A context of one token has no room for a draft.
    if model.num_weight_bytes > _LARGEST_TRIED_BYTES or model.context_length < 2:
        return
    most = model.num_threads
    counts = [count for count in _TRIED_THREADS if count < most]
    counts.append(most)
    best_s = dict.fromkeys(counts, float("inf"))
    for _ in range(_NUM_THREAD_ROUNDS):
        for count in counts:
            model.num_threads = count
            started = time.perf_counter()
            model.decode([0], 1)
            took_s = time.perf_counter() - started
            best_s[count] = min(best_s[count], took_s)
            model.truncate(0)
    chosen = counts[0]
    for count in counts:
        if best_s[count] < _THREADS_MARGIN * best_s[chosen]:
            chosen = count
    model.num_threads = chosen


def _thread_policy(models: Models, was_alone: Callable[[], bool]) -> ThreadPolicy:
    """A policy that adapts the number of threads to the load of the machine.

    The number stays fixed if the user set the target's. It stays fixed on GPUs, too: threads
    matter little there, and a decode's time depends on the decodes before it.

    Args:
        models: The models, whose threads the policy sets.
        was_alone: See `AdaptiveThreads`.
    """
    target = models.target
    draft = models.draft
    head = models.head
    if target.gpus:
        return ThreadPolicy(target.num_threads)
    most_draft_threads = 0
    if draft is not None:
        most_draft_threads = draft.num_threads

    def set_num_threads(count: int) -> None:
        target.num_threads = count
        if draft is not None and draft.may_change_threads:
            draft.num_threads = min(count, most_draft_threads)
        if head is not None:
            head.num_threads = count

    counts = [target.most_threads]
    if target.may_change_threads:
        counts = counts_to_try(target.most_threads)
    return AdaptiveThreads(
        counts,
        target.num_free_cores,
        target.other_programs.num_free_cores,
        set_num_threads,
        was_alone,
    )
