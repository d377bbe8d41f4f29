"""Work for the next answer that is done in advance, while a person types.

`Interrupted` ends the work when the question comes. However the work ends, the loop's invariant
holds: each cache has a prefix of the text.
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

_CHUNK_TOKENS = 128  # tokens decoded at once: the most that an interruption can lose
_MOST_LAG = 32  # a draft whose cache lacks this many tokens or more is not in use
_FAST_S = 0.01  # seconds of a fast model's decode: its costs are measured when it is loaded
_FAST_FIRST_S = 0.1  # seconds of a fast model's first decode, in which kernels are loaded
_FAST_ROUNDS = 2  # how often a fast model's costs are measured
_MOST_SIZES = 3  # sizes of steps that are timed at once
_NUM_DRAFTS = 4  # drafts that are timed; the first one also reads the missing tokens
_DRAFT_TOKENS = 4  # tokens of such a draft
_MOST_READ = 512  # tokens that a draft reads only to be timed or judged
_MOST_JUDGED = 64  # tokens of a draft that are judged at once
_ENOUGH_JUDGED = 256  # judged tokens after which a draft's acceptance is known


def prepare(decoder: SpeculativeDecoder, tokens: list[int], chain: SamplerChain) -> None:
    """Decode the tokens with which the next prompt begins, and learn for the draft policy.

    Costs that the policy does not know are measured, and drafts are judged that were paused.
    Raises Interrupted.

    Args:
        decoder: The loop, whose text becomes `tokens`.
        tokens: The tokens.
        chain: The sampler of a usual answer: its time is part of a step's.
    """
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _judge_drafts(decoder, policy)
    _read_ahead(decoder, tokens)
    _find_costs(decoder, chain)
    if isinstance(policy, AdaptiveDraftPolicy):
        policy.renew()


def _find_costs(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Measure some of the costs that the draft policy does not know yet. Raises Interrupted.

    A fixed policy learns only whether steps should keep their size.
    """
    policy = decoder.draft_policy
    if isinstance(policy, AdaptiveDraftPolicy):
        _measure_costs(decoder, policy.costs, chain)
    elif isinstance(policy, FixedDraftPolicy) and policy.keeps_sizes is None:
        costs = Costs({})
        _measure_costs(decoder, costs, chain)
        policy.keeps_sizes = costs.is_change_dear


def measure_fast(decoder: SpeculativeDecoder, chain: SamplerChain) -> None:
    """Measure the costs of fast models when they are loaded, while the text is empty.

    So the first answer after each load finds the costs known, and takes the same steps. Slow
    models would take long: nothing is measured if a decode takes longer than `_FAST_S`.
    """
    policy = decoder.draft_policy
    is_known = isinstance(policy, AdaptiveDraftPolicy) and not policy.costs.sizes_to_time()
    if is_known or not decoder.proposers:
        return
    try:
        for most_s in (_FAST_FIRST_S, _FAST_S):
            decoder.truncate(0)
            started = decoder.clock()
            decoder.start([0])
            _prefill(decoder.target, decoder.tokens)
            if decoder.clock() - started > most_s:
                return
        for _ in range(_FAST_ROUNDS):
            _find_costs(decoder, chain)
    finally:
        decoder.truncate(0)


def time_decodes(
    decoder: SpeculativeDecoder,
    tokens: list[int],
    costs: Costs,
    chain: SamplerChain,
) -> None:
    """Make `tokens` the text, and time decodes after it whose costs are not known yet.

    Raises Interrupted.

    Args:
        decoder: The loop.
        tokens: The text.
        costs: Learns from the times.
        chain: The sampler, whose time is part of a step's.
    """
    _read_ahead(decoder, tokens)
    _measure_costs(decoder, costs, chain)


def _judge_drafts(decoder: SpeculativeDecoder, policy: AdaptiveDraftPolicy) -> None:
    """Replay what paused drafts would have proposed in the last answer, and learn from it.

    So the policy learns how many tokens of a draft are accepted, at no cost to an answer. A
    draft of which enough tokens were judged is left out, and one that lacks too many tokens.
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
        # The replay needs the row of the token before the first that it judges.
        end = len(tokens) - num_tokens - 1
        _prefill(proposer.model, tokens[proposer.begins_at : end])
        for replay_scores in decoder.replay_scores(proposer, num_tokens):
            for confidence, chance in replay_scores.chances:
                prospect.learned.learn(confidence, chance)


def _read_ahead(decoder: SpeculativeDecoder, tokens: list[int]) -> None:
    """Make `tokens` the text, and decode the part that is not cached.

    Drafts that are in use read the text, too. A paused draft does not: it takes no time, not
    even idle time.
    """
    drafts_in_use = []
    for draft in decoder.proposers:
        if isinstance(draft, DraftModel):
            lag = len(decoder.tokens) - draft.begins_at - draft.model.num_cached
            if 0 <= lag < _MOST_LAG:
                drafts_in_use.append(draft)
    if decoder.tokens != tokens:
        decoder.start(tokens)
    _prefill(decoder.target, tokens)
    for draft in drafts_in_use:
        has_cache = draft.model.num_cached > 0
        # `state` has a head that lacks too many of the tokens begin again at a later one.
        if has_cache and draft.state(tokens).max_tokens > 0:
            _prefill(draft.model, tokens[draft.begins_at :])


def _measure_costs(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Time a few steps and drafts whose costs are not known yet, after the cached text.

    Does nothing once all costs are known, or if nothing can be drafted. Raises Interrupted.
    """
    if not (decoder.proposers and decoder.target.max_rollback):
        return
    try:
        _measure_steps(decoder, costs, chain)
        for proposer in decoder.proposers:
            if not isinstance(proposer, DraftModel):
                continue
            draft_cost = costs.estimates.get(proposer.kind)
            if draft_cost is not None and draft_cost.num_lacking > 0:
                _time_drafts(decoder, proposer, costs, chain)
    finally:
        decoder.truncate(len(decoder.tokens))


def _prefill(model: Model, tokens: list[int]) -> None:
    """Decode the tokens that a model's cache lacks. Raises Interrupted.

    Args:
        model: The model.
        tokens: The text, from the first token that is in the cache.
    """
    begin = model.num_cached
    while begin < len(tokens):
        end = end_of_part(tokens, begin + _CHUNK_TOKENS)
        model.decode(tokens[begin:end], 0)
        begin = end


def _measure_steps(decoder: SpeculativeDecoder, costs: Costs, chain: SamplerChain) -> None:
    """Time steps of sizes whose costs are not known, next to target-only steps.

    The ratio of the two times counts. Both include the sampler's time. The step just after a
    change of size is slower, so it does not count for its size.
    """
    target = decoder.target
    tokens = decoder.tokens
    most = min(target.context_length - len(tokens), target.max_outputs)
    target.checkpoint()
    sizes = [size for size in costs.sizes_to_time() if size <= most][:_MOST_SIZES]
    text_tokens = without_cells(tokens)
    for size in sizes:
        seconds = []
        for num_tokens in (1, 1, size, size, size, size, 1):
            # Tokens of the text, repeated if it is too short: in a mixture of experts the time
            # depends on the tokens.
            last_tokens = text_tokens[-num_tokens:]
            batch = (last_tokens * num_tokens)[:num_tokens]
            started = decoder.clock()
            logits = target.decode(batch, num_tokens)
            chain.distributions(logits, tokens, batch[:-1])
            seconds.append(decoder.clock() - started)
            target.truncate(len(tokens))
            if target.num_cached < len(tokens):
                return  # the cache was emptied: the next batch would take the text's place
        plain_s = seconds[1]
        same_size_s = seconds[3:6]  # after a step of the same size
        back_s = seconds[6]  # a target-only step after another size
        costs.learn_in_idle_time(size, plain_s, same_size_s, back_s)


def _time_drafts(
    decoder: SpeculativeDecoder,
    draft: DraftModel,
    costs: Costs,
    chain: SamplerChain,
) -> None:
    """Time a few drafts of a draft model. The first one also reads the missing tokens.

    Does nothing if the model can hardly draft here, or lacks too many tokens.
    """
    if draft.model.max_rollback == 0:
        return  # it would have to read all of the text again
    tokens = decoder.tokens
    # As at the beginning of a step: the draft lacks the last token, which is pending.
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
    """The most probable token of a distribution, in place of a draw."""
    return int(distribution.ids[distribution.masses.argmax()])
