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

_LARGEST_TRIED_BYTES = 100_000_000  # weights; a larger model keeps all cores busy
_NUM_THREAD_ROUNDS = 5
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
        shared: The tokens that target and draft share.
    """
    target, draft, head, _ = models
    if drafting.is_off:
        return [], DraftOff.SET_TO_ZERO
    if target.max_rollback == 0:
        return [], DraftOff.TARGET_CANNOT_ROLL_BACK
    is_end = target.vocabulary.is_end
    proposers: list[Proposer] = []
    if head is not None:
        proposers.append(_head_proposer(head, is_end))
    if draft is not None and shared is not None:
        proposers.append(DraftModel(draft, shared, is_end))
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
    from localspec.llama.head import DflashHead  # imported late: loads libllama
    from localspec.llama.medusa import MedusaHeads

    if isinstance(head, DflashHead | MedusaHeads):
        return Blocks(head, is_end)
    return Head(head, is_end)


def answer_policy(
    drafting: Drafting | None,
    proposers: Sequence[Proposer],
) -> tuple[FixedDraftPolicy | None, frozenset[ProposerKind] | None]:
    """The policy for one answer, and the kinds of proposers that it may use.

    None means the engine's policy, or all kinds. Raises OptionError for a missing proposer.
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
    here = [proposer.kind.value for proposer in proposers]
    if kind not in here:
        raise OptionError(
            f"this engine has no proposer {kind.value!r}",
            f"It has {', '.join(here) or 'none'}; load it with proposer={kind.value!r}.",
        )
    return policy, frozenset([kind])


class Learning(NamedTuple):
    """A draft policy, with what was learned before."""

    policy: DraftPolicy

    profile: Profile | None
    """Keeps what the policy learns; None if drafting is fixed or a model has no identity."""

    threads: Mapping[str, Any]
    """What was learned of threads: see `ThreadPolicy.restore`."""


def choose_policies(
    models: Models,
    drafting: Drafting,
    proposers: Sequence[Proposer],
    was_alone: Callable[[], bool],
) -> tuple[Learning, ThreadPolicy]:
    """The draft and thread policies. was_alone: see `AdaptiveThreads`."""
    threads = _thread_policy(models, was_alone)
    learning = choose_draft_policy(models, drafting, proposers, models.target.num_threads)
    try:
        threads.restore(learning.threads)
    except DAMAGES as error:
        logger.warning("what was learned of threads is damaged: %s", error)
        threads = _thread_policy(models, was_alone)
    return learning, threads


def choose_draft_policy(
    models: Models,
    drafting: Drafting,
    proposers: Sequence[Proposer],
    num_threads: int,
) -> Learning:
    """The draft policy of the models, under the scales that the target's adapters have.

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
    identities = [model.identity for model in models.all]
    known = [identity for identity in identities if identity is not None]
    if len(known) < len(identities):
        return Learning(policy, None, {})
    profile = Profile(known)
    kept = profile.load()
    if kept is None:
        shipped = shipped_acceptance(contents_of(known))
        if shipped is not None:
            policy.expect(shipped)
        return Learning(policy, profile, {})
    try:
        policy.restore(kept)
        for proposer in proposers:
            if isinstance(proposer, Lookup):
                proposer.restore(kept.get("lookup", {}))
    except DAMAGES as error:
        logger.warning("%s is damaged and will be replaced: %s", profile.path, error)
        return Learning(AdaptiveDraftPolicy(shares, num_threads), profile, {})
    return Learning(policy, profile, kept.get("threads", {}))


def _weight_shares(models: Models, proposers: Sequence[Proposer]) -> dict[ProposerKind, float]:
    """The size of each proposer's weights as a share of the target's.

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
    """Set a small model's threads to the fewest that are about the fastest.

    Threads that share a few milliseconds of work mostly wait for each other: a model of a
    few million parameters can be twice as fast on one core as on two.

    Decodes a token five times for each number of threads. The KV cache must be empty before,
    and is empty after.
    """
    if model.num_weight_bytes > _LARGEST_TRIED_BYTES or model.context_length < 2:
        return
    most = model.num_threads
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count < most]
    counts.append(most)
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
    """A policy that adapts threads to the load, unless the user set the target's number.

    On GPUs threads matter little, and a decode's time depends on those before it.
    """
    target, draft, head, _ = models
    if target.gpus:
        return ThreadPolicy(target.num_threads)
    most = target.most_threads
    most_of_draft = 0
    if draft is not None:
        most_of_draft = draft.num_threads

    def set_num_threads(count: int) -> None:
        target.num_threads = count
        if draft is not None and draft.may_change_threads:
            draft.num_threads = min(count, most_of_draft)
        if head is not None:
            head.num_threads = count

    counts = [most]
    if target.may_change_threads:
        counts = counts_to_try(most)
    look_again = target.other_programs.num_free_cores
    return AdaptiveThreads(
        counts,
        target.num_free_cores,
        look_again,
        set_num_threads,
        was_alone,
    )
