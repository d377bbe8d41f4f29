"""Work for the next answer that is done in advance, while a person types.

`Interrupted` ends it when the question comes. However it ends, the loop's invariant holds: each
cache has a prefix of the text.
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

_CHUNK = 128  # tokens decoded at once: the most that an interruption can lose
_FOLLOWING = 32  # a draft that is in use lags fewer tokens than this
_FAST_S = 0.01  # seconds of a decode of a fast model, whose costs are measured at once
_MOST_SIZES = 3  # sizes of steps that are timed in one pause
_NUM_DRAFTS = 4  # drafts that are timed; the first one also reads the missing tokens
_DRAFT_TOKENS = 4  # tokens of such a draft
_MOST_READ = 512  # tokens that a draft reads only to be timed or judged
_MOST_JUDGED = 64  # tokens of a draft that are judged in one pause
_ENOUGH_JUDGED = 256  # judged tokens that show how a draft's tokens fare


def prepare(decoder: SpeculativeDecoder, tokens: list[int], chain: SamplerChain) -> None:
    """Read `tokens`, with which the next prompt begins; find out what a policy has to know.

    Raises Interrupted.

    Args:
        decoder: The loop.
        tokens: The text.
        chain: The sampler of a usual answer, whose time is part of a step's.
    """
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _judge_drafts(decoder, policy)
    _read_ahead(decoder, tokens)
    _find_costs(decoder, chain)
    if isinstance(policy, AdaptiveDraftPolicy):
        policy.renew()


def _find_costs(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Measure some of the costs that the policy does not know yet."""
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _measure_costs(decoder, policy.costs, chain)
    elif isinstance(policy, FixedDraftPolicy) and policy.keeps_sizes is None:
        costs = Costs({})
        _measure_costs(decoder, costs, chain)
        policy.keeps_sizes = costs.is_change_dear


def measure_fast(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Measure the costs of fast models when they are loaded, while the text is empty.

    So the first answers know the costs, and take the same steps each time. With slow models
    this would take long.
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
    decoder: SpeculativeDecoder,
    tokens: list[int],
    costs: Costs,
    chain: SamplerChain,
) -> None:
    """Make `tokens` the text, and time decodes after it that costs lack. Raises Interrupted."""
    _read_ahead(decoder, tokens)
    _measure_costs(decoder, costs, chain)


def _judge_drafts(decoder: SpeculativeDecoder, policy: AdaptiveDraftPolicy) -> None:
    """Replay what a draft that was paused would have proposed in the answer.

    So the next answer knows how the draft fares, without time of its own. Once enough of a
    draft's tokens were judged, this does nothing.
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
    """Make `tokens` the text, and decode the part that is not cached.

    A draft that has kept up reads the text, too. One that is paused does not: it costs no time,
    even idle time.
    """
    following = []
    for draft in decoder.proposers:
        if isinstance(draft, DraftModel):
            lag = len(decoder.tokens) - draft.begins_at - draft.model.num_cached
            if 0 <= lag < _FOLLOWING:
                following.append(draft)
    if decoder.tokens != tokens:
        decoder.start(tokens)
    _prefill(decoder.target, tokens)
    for draft in following:
        has_cache = draft.model.num_cached > 0
        # A head that lacks too many of the tokens begins again at a later one.
        if has_cache and draft.state(tokens).max_tokens > 0:
            _prefill(draft.model, tokens[draft.begins_at :])


def _measure_costs(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Time a few steps and drafts whose costs are not known yet, after the cached text.

    Once all costs are known, this does nothing.
    """
    if not (decoder.proposers and decoder.target.max_rollback):
        return
    try:
        _measure_steps(decoder, costs, chain)
        for proposer in decoder.proposers:
            token = costs.estimates.get(proposer.kind)
            if isinstance(proposer, DraftModel) and token is not None and token.num_lacking:
                _time_drafts(decoder, proposer, costs, chain)
    finally:
        decoder.truncate(len(decoder.tokens))


def _prefill(model: Model, tokens: list[int]) -> None:
    """Decode the tokens that the cache lacks.

    Args:
        model: The model.
        tokens: The text, from the cache's first token on.
    """
    begin = model.num_cached
    while begin < len(tokens):
        end = end_of_part(tokens, begin + _CHUNK)
        model.decode(tokens[begin:end], 0)
        begin = end


def _measure_steps(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Time steps of new sizes next to target-only steps, since their ratio counts.

    The sampler's time is included. Each size comes several times in a row: the first time shows
    what a change of size costs.
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
            # Tokens of the text: in a mixture of experts the time depends on the tokens.
            batch = (words[-num_tokens:] * num_tokens)[:num_tokens]
            started = decoder.clock()
            logits = target.decode(batch, num_tokens)
            chain.distributions(logits, tokens, batch[:-1])
            seconds.append(decoder.clock() - started)
            target.truncate(len(tokens))
            if target.num_cached < len(tokens):
                return  # the cache was emptied: the next batch would take the text's place
        costs.learn_in_idle_time(size, seconds[1], seconds[3:6], seconds[6])


def _time_drafts(
    decoder: SpeculativeDecoder,
    draft: DraftModel,
    costs: Costs,
    chain: SamplerChain,
) -> None:
    """Time a few drafts; the first also reads the missing tokens."""
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
