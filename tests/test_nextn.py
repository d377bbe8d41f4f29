"""What libllama's heads do, as far as localspec relies on it; see `localspec.llama.head`."""

from __future__ import annotations

import numpy as np
import pytest
from head_driver import Context, Weights, in_a_child
from head_maker import ALL, INSIDE, NUM_HEADS, write_head_model

from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.head import head_facts

TEXT = [5 + 37 * index % 900 for index in range(60)]
CLOSE = 2e-3


@pytest.fixture(scope="module")
def made(tmp_path_factory, demo_target):
    """Files in which a head's layers count for much."""
    folder = tmp_path_factory.mktemp("heads")
    return {
        (name, part): write_head_model(
            folder / f"{name}-{part}.gguf", demo_target, name, part=part, mixing=0.5
        )
        for name in ALL
        for part in ("whole", "head")
    }


class Pair:
    """A target that has read TEXT, and a head; `rows` are what the head reads at each token."""

    def __init__(self, made, name: str, *, part: str = "whole") -> None:
        facts = head_facts(check_model_file(made[name, part]))
        assert facts is not None
        self._weights = [Weights(made[name, "whole"])]
        if part == "head":
            self._weights.append(Weights(made[name, "head"]))
        self.target = Context(self._weights[0])
        self._heads: list[Context] = []
        self.is_cropped = facts.is_cropped
        # Later it would empty the target's cache, see below.
        self.shared = self.head() if facts.shares_cache else None
        _, rows = self.target.decode(TEXT, 0, 1)
        self.rows = np.vstack([np.zeros_like(rows[:1]), rows])

    def head(self) -> Context:
        """A new one, which has read nothing."""
        head = Context(self._weights[-1], self.target, is_cropped=self.is_cropped)
        self._heads.append(head)
        return head

    def read(self, head: Context, begin: int, end: int, num_logits: int = 1):
        """Tokens of TEXT from `begin` up to `end`: what is known after the last of them."""
        logits, rows = head.decode(TEXT[begin:end], begin, num_logits, self.rows[begin:end])
        return (logits[-1], rows[-1]) if num_logits else None

    def close(self) -> None:
        for context in (*self._heads, self.target):
            context.close()
        for weights in self._weights:
            weights.close()


@pytest.fixture
def pair(made, request):
    made_pair = Pair(made, request.param)
    yield made_pair
    made_pair.close()


def assert_same(one, other) -> None:
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=CLOSE)


@pytest.mark.parametrize("pair", INSIDE, indirect=True)
def test_many_tokens_in_one_decode_are_like_one_at_a_time(pair):
    """Rows of the target, and an output at the last token only: logits and the head's row."""
    slow = pair.head()
    for position in range(33):
        one_by_one = pair.read(slow, position, position + 1)
    fused = pair.head()
    assert_same(pair.read(fused, 0, 33), one_by_one)
    in_parts = pair.head()
    pair.read(in_parts, 0, 20, 0)
    assert_same(pair.read(in_parts, 20, 33), one_by_one)


@pytest.mark.parametrize("pair", INSIDE, indirect=True)
def test_a_row_belongs_to_the_token_after_it(pair):
    """A head that is fed with the rows of other tokens says something else."""
    right = pair.read(pair.head(), 0, 33)
    for shift in (-1, 1):
        rows = np.roll(pair.rows, shift, axis=0)[:33]
        wrong, _ = pair.head().decode(TEXT[:33], 0, 1, rows)
        assert np.abs(wrong[-1] - right[0]).max() > 10 * CLOSE


@pytest.mark.parametrize("name", INSIDE)
def test_the_head_in_a_file_of_its_own_is_the_same(made, name):
    inside, alone = Pair(made, name), Pair(made, name, part="head")
    ours, theirs = (one.read(one.head(), 0, 33) for one in (inside, alone))
    for here, there in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(here, there)
    inside.close()
    alone.close()


@pytest.mark.process
@pytest.mark.parametrize("name", [*INSIDE, "gemma4"])
def test_rows_of_outputs_or_of_all_tokens(made, name):
    """The other way libllama ends the process, or gives a row of another token."""
    file, own = made[name, "whole"], made[name, "head"]
    facts = head_facts(check_model_file(own))
    code = (
        f"import numpy as np; target = Context(Weights(Path({str(file)!r}))); "
        f"head = Context(Weights(Path({str(own)!r})), target, is_cropped={{}}); "
        "_, rows = target.decode([5, 6], 0, 1); head.decode([7, 8], 2, 1, rows)"
    )
    assert facts is not None
    assert in_a_child(code.format(facts.is_cropped)) == 0
    if facts.is_cropped:
        assert in_a_child(code.format(False)) < 0


@pytest.mark.parametrize("name", ["qwen35", "glm4moe"])
def test_asked_for_rows_of_outputs_some_give_wrong_ones(made, name):
    pair = Pair(made, name)
    assert not pair.is_cropped
    logits, row = pair.read(pair.head(), 0, 33)
    pair.is_cropped = True
    masked_logits, wrong = pair.read(pair.head(), 0, 33)
    np.testing.assert_allclose(masked_logits, logits, atol=CLOSE)
    assert np.abs(wrong - row).max() > 10 * CLOSE
    pair.close()


@pytest.mark.parametrize("pair", INSIDE, indirect=True)
def test_a_head_may_begin_anywhere_and_be_cut_anywhere(pair):
    late = pair.head()
    pair.read(late, 20, 40)
    late.cut(30)
    assert late.last_position == 29
    again = pair.head()
    pair.read(again, 20, 30, 0)
    assert_same(pair.read(late, 30, 35), pair.read(again, 30, 35))


# --- chained heads ---


def read_with_all(pair: Pair, head: Context, begin: int, end: int):
    """The text with each of them, the first one last: what that says after it."""
    for layer in reversed(range(NUM_HEADS["step35"])):
        head.cut(begin)
        head.choose(layer)
        said = pair.read(head, begin, end, 1 if layer == 0 else 0)
    return said


def drafted(head: Context, position: int, drafts: list[int], first):
    """What each head says after the drafts so far, the first of them at that position."""
    said = [first]
    for layer in range(1, NUM_HEADS["step35"]):
        head.cut(position)
        head.choose(layer)
        rows = np.array([row for _, row in said])
        logits, new = head.decode(drafts[:layer], position, 1, rows)
        said.append((logits[-1], new[-1]))
    return said


def as_llama_cpp_does(pair: Pair, head: Context, begin: int, last: int, drafts: list[int]):
    """Its driver (common/speculative.cpp): the text up to `last`, which each head reads again
    in front of the drafts."""
    for layer in range(NUM_HEADS["step35"]):
        head.cut(begin)
        head.choose(layer)
        pair.read(head, begin, last, 0)
    tokens, rows, said = [TEXT[last]], [pair.rows[last]], []
    for layer, draft in enumerate(drafts):
        head.cut(last)
        head.choose(layer)
        logits, new = head.decode(tokens, last, 1, np.array(rows))
        said.append((logits[-1], new[-1]))
        tokens.append(draft)
        rows.append(new[-1])
    return said


@pytest.mark.parametrize("pair", ["step35"], indirect=True)
def test_chained_heads_draft_as_in_llama_cpp(pair):
    """Also after drafts that were refused, and where the text goes on."""
    ours, theirs = pair.head(), pair.head()
    begin_ours = begin_theirs = 0
    for last, drafts in ((20, [7, 8, 9]), (21, [900, 3, 5]), (26, [1, 2, 3]), (50, [4, 4, 4])):
        first = read_with_all(pair, ours, begin_ours, last + 1)
        mine = drafted(ours, last + 1, drafts, first)
        expected = as_llama_cpp_does(pair, theirs, begin_theirs, last, drafts)
        assert len(mine) == len(expected) == 3
        for one, other in zip(mine, expected, strict=True):
            assert_same(one, other)
        begin_ours, begin_theirs = last + 1, last


@pytest.mark.parametrize("pair", ["step35"], indirect=True)
def test_each_of_several_heads_has_to_read_the_text(pair):
    lazy, careful = pair.head(), pair.head()
    lazy.choose(0)
    few = drafted(lazy, 21, [7, 8, 9], pair.read(lazy, 0, 21))
    all_of_it = drafted(careful, 21, [7, 8, 9], read_with_all(pair, careful, 0, 21))
    assert_same(few[0], all_of_it[0])
    for one, other in zip(few[1:], all_of_it[1:], strict=True):
        assert np.abs(one[0] - other[0]).max() > 10 * CLOSE


# --- Gemma 4's assistant ---


@pytest.fixture
def gemma(made):
    pair = Pair(made, "gemma4", part="head")
    yield pair
    pair.close()


def test_opening_or_clearing_an_assistant_empties_its_target(gemma):
    """libllama gives both the same cells, and sets up new ones."""
    assert gemma.target.last_position == 59
    gemma.head()
    assert gemma.target.last_position == -1
    gemma.target.decode(TEXT, 0, 1)
    gemma.shared.clear()
    assert gemma.target.last_position == -1


def test_an_assistant_reads_its_target_s_cache(gemma):
    """Each draft is read alone, behind the target's last token, and leaves nothing."""
    head = gemma.shared
    assert head.shares_cache
    assert head.last_position == gemma.target.last_position == 59
    first = head.decode([7], 60, 1, gemma.rows[60:])
    second = head.decode([8], 60, 1, first[1])
    assert gemma.target.last_position == 59
    again = head.decode([7], 60, 1, gemma.rows[60:])
    np.testing.assert_array_equal(again[0], first[0])
    assert np.abs(second[0] - first[0]).max() > 10 * CLOSE
    for position in (59, 61):
        with pytest.raises(ValueError, match="status -1"):
            head.decode([8], position, 1, first[1])
    head.cut(20)
    assert gemma.target.last_position == 59
    gemma.target.cut(40)
    other_text = head.decode([7], 40, 1, gemma.rows[60:])
    assert np.abs(other_text[0] - first[0]).max() > 10 * CLOSE


def test_an_assistant_does_not_disturb_its_target(gemma):
    for _ in range(4):
        gemma.shared.decode([7], 60, 1, gemma.rows[60:])
    after, _ = gemma.target.decode([7], 60, 1)
    gemma.target.cut(0)
    gemma.target.decode(TEXT, 0, 1)
    np.testing.assert_allclose(after, gemma.target.decode([7], 60, 1)[0], atol=CLOSE)


# --- how often drafts are right ---


def greedy_acceptance(pair: Pair) -> float:
    """How often the head says what the target says next."""
    target, head = pair.target, pair.shared or pair.head()
    token, row, right = TEXT[0], pair.rows[:1], 0
    target.cut(0)
    for position in range(60):
        if head.shares_cache:
            guess, _ = head.decode([token], position, 1, row) if position else (None, None)
            logits, rows = target.decode([token], position, 1)
        else:
            logits, rows = target.decode([token], position, 1)
            guess, _ = head.decode([token], position, 1, row)
        wanted = int(logits[-1].argmax())
        right += guess is not None and int(guess[-1].argmax()) == wanted
        # A text of its own choice would soon repeat itself.
        token, row = TEXT[(7 * position + wanted) % 60], rows[-1:]
    return right / 60


@pytest.mark.parametrize("name", ALL)
def test_the_heads_of_tests_are_right_now_and_then(tmp_path, demo_target, name):
    part = "head" if name == "gemma4" else "whole"
    parts = {"whole", part}
    files = {
        (name, each): write_head_model(tmp_path / f"{each}.gguf", demo_target, name, part=each)
        for each in parts
    }
    pair = Pair(files, name, part=part)
    rate = greedy_acceptance(pair)
    pair.close()
    assert 0.1 < rate < 0.95, rate
