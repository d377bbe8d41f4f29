"""The law of answers at once: each is what its own text's target says, whoever decodes beside.

Real models, whose rows of joint decodes are those of single ones to the bit. So every way that
an answer's numbers allow can be taken again and again while another answer's decodes are joined
with its own, and the probabilities of its texts be compared with those of plain decoding alone.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import inside
import localspec
from enumeration import Enumeration
from localspec.llama.joint_costs import RowTimes
from localspec.llama.joint_decode import JointPart, decode_parts, joinable
from localspec.sampling.chain import SamplerChain
from localspec.speculative.loop import Request
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.rules import make_rule

PROMPTS = [[5 + 37 * place % 900 for place in range(begin, begin + 12)] for begin in range(4)]
# Two candidates, of which the one that was said is favoured: rows depend on what was drafted.
TWO = localspec.SamplingParams(
    temperature=1.0, top_k=2, top_p=1.0, min_p=0.0, presence_penalty=-0.5, penalty_last_n=8
)
MOST = 4  # tokens of a text


def law(engine, loop, prompt, num_draft_tokens, rule="token"):
    """Text → probability, along every way that the numbers of its steps allow."""
    is_end = engine.vocabulary.is_end
    loop.draft_policy = FixedDraftPolicy(num_draft_tokens)

    def run(numbers):
        loop.start(prompt)
        made = make_rule(rule, numbers)
        chain = SamplerChain(TWO, num_prompt_tokens=len(prompt))
        steps = loop.steps(Request(chain, made, MOST, is_end))
        return tuple(token for step in steps for token in step.tokens)

    return Enumeration().distribution(run)


@pytest.fixture(scope="module")
def plain(exact_target):
    """The laws of plain decoding, alone."""
    with (
        localspec.load(
            target=exact_target, exact=True, draft_tokens=0, context_length=256
        ) as engine,
        inside.lent(engine) as loop,
    ):
        return [law(engine, loop, prompt, 0) for prompt in PROMPTS]


@pytest.fixture(params=["model", "head"])
def engine(request, exact_target, demo_draft, demo_head):
    helps = {"draft": demo_draft} if request.param == "model" else {"head": demo_head}
    with localspec.load(
        target=exact_target,
        exact=True,
        context_length=256,
        parallel=4,
        num_threads=1,
        proposer=request.param if request.param == "head" else "auto",
        **helps,
    ) as opened:
        assert opened.exactness.joined
        yield opened


class Together:
    """Threads, of which one runs at a time. Their decodes are joint: when all wait for one.

    num_texts: threads, each of which has `turn` while it runs.
    """

    def __init__(self, num_texts):
        self.turn = threading.Condition()
        self.num_asked = 0
        self._num_texts, self._waiting = num_texts, []

    def decode(self, model, tokens, num_logits):
        part = JointPart(model, tokens, num_logits)
        self.num_asked += 1
        self._waiting.append(part)
        self._decode_if_all_wait()
        self.turn.wait_for(lambda: part.rows is not None)
        return part.rows

    def end(self):
        self._num_texts -= 1
        self._decode_if_all_wait()

    def _decode_if_all_wait(self):
        while self._waiting and len(self._waiting) >= self._num_texts:
            chosen, _ = joinable(self._waiting, RowTimes())
            decode_parts(chosen)
            for part in chosen:
                part.rows = part.rows.copy()
                self._waiting.remove(part)
            self.turn.notify_all()


def test_joint_steps_have_the_targets_law(engine, plain, monkeypatch):
    """To 1e-12, by each rule; and they are joint."""
    lanes, together = inside.lanes(engine)[:2], Together(2)
    for lane in lanes:
        lane.make_ready()
        target = lane.models.target
        decode = functools.partial(together.decode, copy.copy(target))
        monkeypatch.setattr(target, "decode", decode)

    def laws(number):
        loop = lanes[number].decoder
        with together.turn:
            found = [law(engine, loop, PROMPTS[number], 2, rule) for rule in ("token", "block")]
            together.end()
        return found

    begun = engine.num_decodes
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(laws, range(2)))
    assert engine.num_decodes - begun < 0.75 * together.num_asked
    for number in range(2):
        for each in found[number]:
            assert set(each) == set(plain[number])
            for text, prob in each.items():
                assert prob == pytest.approx(plain[number][text], abs=1e-12)


def test_four_clients_say_each_text_as_often_as_its_law_asks(engine, plain):
    """Of sampled answers, in joint steps."""
    count = 60

    def ask(number):
        return Counter(
            engine.generate_raw(
                PROMPTS[number],
                sampling=TWO,
                seed=seed,
                rule=("token", "block")[seed % 2],
                max_tokens=MOST,
                draft_tokens=2,
                stop=[],
            )
            .reply()
            .token_ids
            for seed in range(count)
        )

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(4)))
    for said, expected in zip(found, plain, strict=True):
        assert set(said) <= set(expected)
        for text, prob in expected.items():
            deviation = (prob * (1.0 - prob) / count) ** 0.5
            assert abs(said[text] / count - prob) < 4.5 * deviation + 1.0 / count
