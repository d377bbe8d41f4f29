"""How the page draws an answer: line ends, mathematics, and what goes on behind Stop."""

from __future__ import annotations

import pytest
from page_driver import ask, ended, last_text, played

pytestmark = pytest.mark.process

ANSWER = "#messages li:last-child .text"


@pytest.mark.parametrize(
    ("came", "rest", "tag", "whole"),
    [
        ("```python\nx = 1\ny ", "= 2\n```", "pre", "x = 1\ny = 2"),
        ("A fox and", " a hen.", "p", "A fox and a hen."),
        ("* one\n* t", "wo", "ul", "one\ntwo"),
        ("| a |\n|---|\n| b", "c |", "table", "a\nbc"),
    ],
)
def test_what_goes_on_is_drawn_as_one_answer(page, came, rest, tag, whole):
    played(page, {"content": came}, reason="length")
    ask(page, "Write.")
    played(page, {"content": rest})
    page.click("text=Go on")
    ended(page)
    drawn = page.locator(f"{ANSWER} {tag}")
    assert [each.strip() for each in drawn.all_inner_texts()] == [whole]


MATHS = r"""Inline $x^2$ and \(y_1\), 3$ beside:

$$
\frac{a}{b}
- c
= \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
$$

* in a list: \[ \sqrt{2} \]

$$\href{javascript:alert(1)}{x}$$

It costs $5-$6, $5 or 6$, (8$), 9$/kg, 9$, and \$7; `$z$` is code, $\unknown$ is not known.
"""


def test_mathematics_is_set_and_prices_are_not(page):
    played(page, *({"content": sign} for sign in MATHS))
    ask(page, "Prove it.")
    drawn = page.locator(f"{ANSWER} math")
    assert drawn.count() == 4
    assert page.locator(f"{ANSWER} math[display=block]").count() == 2
    assert page.locator(f"{ANSWER} :is(mfrac, mtable, msqrt, msup, msub)").count() == 5
    told = last_text(page)
    assert "$5-$6, $5 or 6$, (8$), 9$/kg, 9$, and $7; $z$ is code, $\\unknown$ is" in told
    assert "$$\\href{javascript:alert(1)}{x}$$" in told
    assert page.locator(f"{ANSWER} a").count() == 0
