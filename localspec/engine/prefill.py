"""Work for the next answer that is done in advance, while a person types.

Whatever ends it, as `Interrupted` does when the question comes, the loop's invariant holds: the
caches have a prefix of the text.
"""

from __future__ import annotations

from localspec.pictures.cells import end_of_part, without_cells
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.policy.cost import Costs
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.model_api import Model, result_of
from localspec.speculative.policy_api import FixedDraftPolicy, UpTo
from localspec.speculative.proposers import DraftModel

_CHUNK = 128  # tokens that are decoded at once: what an interruption can lose
_FOLLOWING = 32  # tokens that a draft lags behind at most while it is being asked
_FAST_S = 0.01  # of a decode, which is timed when the model is loaded
_MOST_SIZES = 3  # that are timed in one pause
_NUM_DRAFTS = 4  # that are timed, the first of which reads
_DRAFT_TOKENS = 4  # in each of them
_MOST_READ = 512  # tokens that a draft reads for no other reason than to be timed or judged
_MOST_JUDGED = 64  # of its tokens, in one pause
_ENOUGH_JUDGED = 256  # at any time, to know how its tokens fare


def prepare(decoder: SpeculativeDecoder, tokens: list[int], chain: SamplerChain) -> None:
    """Read `tokens`, with which the next prompt begins; find out what a policy has to know.

    Raises Interrupted.

    Args:
        chain: Those of a usual answer, whose time belongs to a step's.
    """
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _judge_drafts(decoder, policy)
    _read_ahead(decoder, tokens)
    _find_costs(decoder, chain)
    if isinstance(policy, AdaptiveDraftPolicy):
        policy.renew()


def _find_costs(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Measure a part of what the policy does not know yet."""
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _measure_costs(decoder, policy.costs, chain)
    elif isinstance(policy, FixedDraftPolicy) and policy.keeps_sizes is None:
        costs = Costs({})
        _measure_costs(decoder, costs, chain)
        policy.keeps_sizes = costs.is_change_dear


def measure_fast(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Find out the costs of fast models when they are loaded, while the text is empty.

    So the first answers begin with them, and repeat their steps. Slow models would take long.
    """
    policy = decoder.draft_policy
    is_known = isinstance(policy, AdaptiveDraftPolicy) and not policy.costs.sizes_to_time()
    if is_known or not decoder.proposers:
        return
    try:
        for most_s in (10 * _FAST_S, _FAST_S):  # kernels are loaded in the first decode
            decoder.truncate(0)
            started = decoder.clock()
            decoder.start([0])
            _prefill(decoder.target, decoder.tokens)
            if decoder.clock() - started > most_s:
                return
        for _ in range(2):
            _find_costs(decoder, chain)
    finally:
        decoder.truncate(0)


def time_decodes(
    decoder: SpeculativeDecoder, tokens: list[int], costs: Costs, chain: SamplerChain
) -> None:
    """Make `tokens` the text, and time decodes after it that costs lack. Raises Interrupted."""
    _read_ahead(decoder, tokens)
    _measure_costs(decoder, costs, chain)


def _judge_drafts(decoder: SpeculativeDecoder, policy: AdaptiveDraftPolicy) -> None:
    """Ask a draft that was paused what it would have proposed in the answer.

    So the next one begins with that knowledge, and need not pay for it. Later, when enough of
    a draft's tokens were judged, nothing is done any more.
    """
    tokens = decoder.tokens
    for proposer, prospect in zip(decoder.proposers, policy.prospects, strict=False):
        if not isinstance(proposer, DraftModel):
            continue
        state = proposer.state(tokens)
        num_tokens = min(state.num_unjudged, decoder.num_answered, _MOST_JUDGED)
        is_known = prospect.learned.num_seen >= _ENOUGH_JUDGED
        if num_tokens == 0 or is_known or state.num_missing > _MOST_READ:
            continue
        _prefill(proposer.model, tokens[proposer.begins_at : len(tokens) - num_tokens - 1])
        for replay_scores in decoder.replay_scores(proposer, num_tokens):
            for confidence, chance in replay_scores.chances:
                prospect.learned.learn(confidence, chance)


def _read_ahead(decoder: SpeculativeDecoder, tokens: list[int]) -> None:
    """Make `tokens` the text, and decode what is missing.

    A draft that has kept up reads it, too; one that is paused costs no time, idle or not.
    """
    following = [
        draft
        for draft in decoder.proposers
        if isinstance(draft, DraftModel)
        and 0 <= len(decoder.tokens) - draft.begins_at - draft.model.num_cached < _FOLLOWING
    ]
    if decoder.tokens != tokens:
        decoder.start(tokens)
    _prefill(decoder.target, tokens)
    for draft in following:
        has_cache = draft.model.num_cached > 0
        # A head that lacks too much of it goes on further behind.
        if has_cache and draft.state(tokens).max_tokens > 0:
            _prefill(draft.model, tokens[draft.begins_at :])


def _measure_costs(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Time steps of sizes that were not timed yet after the text, which is cached, and drafts.

    A few of them: when all is known nothing is done any more.
    """
    if not (decoder.proposers and decoder.target.max_rollback):
        return
    try:
        _measure_steps(decoder, costs, chain)
        for proposer in decoder.proposers:
            token = costs.ledger.get(proposer.kind)
            if isinstance(proposer, DraftModel) and token is not None and token.num_lacking:
                _time_drafts(decoder, proposer, costs, chain)
    finally:
        decoder.truncate(len(decoder.tokens))


def _prefill(model: Model, tokens: list[int]) -> None:
    """Decode what the cache lacks of `tokens`, the text from its first token on."""
    begin = model.num_cached
    while begin < len(tokens):
        end = end_of_part(tokens, begin + _CHUNK)
        model.decode(tokens[begin:end], 0)
        begin = end


def _measure_steps(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Target-only steps beside some of another size, since the ratio counts; sampler included.

    Each size comes several times in a row: the first time shows what a change of size costs.
    """
    target = decoder.target
    tokens = decoder.tokens
    most = min(target.context_length - len(tokens), target.max_outputs)
    target.checkpoint()
    sizes = [size for size in costs.sizes_to_time() if size <= most][:_MOST_SIZES]
    words = without_cells(tokens)
    for size in sizes:
        seconds = []
        for num_tokens in (1, 1, size, size, size, size, 1):
            # Words of the text itself: where experts share the work, it matters which.
            batch = (words[-num_tokens:] * num_tokens)[:num_tokens]
            started = decoder.clock()
            logits = target.decode(batch, num_tokens)
            chain.distributions(logits, tokens, batch[:-1])
            seconds.append(decoder.clock() - started)
            target.truncate(len(tokens))
            if target.num_cached < len(tokens):
                return  # emptied: another batch would be decoded in the text's place
        costs.compare(size, seconds[1], seconds[3:6], seconds[6])


def _time_drafts(
    decoder: SpeculativeDecoder, draft: DraftModel, costs: Costs, chain: SamplerChain
) -> None:
    """Some drafts, of which the first one reads and the others only draft."""
    if draft.model.max_rollback == 0:
        return  # it would have to read all of the text again
    tokens = decoder.tokens
    # As in a step: the last token, the pending one, is missing.
    draft.truncate(len(tokens) - 1)
    state = draft.state(tokens)
    if state.max_tokens < _DRAFT_TOKENS or state.num_missing > _MOST_READ:
        return
    for _ in range(_NUM_DRAFTS):
        started = decoder.clock()
        proposal = result_of(draft.propose(tokens, UpTo(_DRAFT_TOKENS), chain, _likeliest))
        seconds = decoder.clock() - started
        draft.truncate(len(tokens) - 1)
        costs.learn_draft(draft.kind, proposal.num_read, len(proposal.draft_tokens), seconds)


def _likeliest(_index: int, distribution: Distribution) -> int:
    return int(distribution.ids[distribution.masses.argmax()])
