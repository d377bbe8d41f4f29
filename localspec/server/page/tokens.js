// Shows an answer token by token. The colour of a token says where it came from; its description
// also has its probability and the other tokens that were probable.

import { element } from "./dom.js";

export const SOURCES = {
  accepted: "drafted and kept",
  recovered: "in place of a rejected one",
  bonus: "added after a fully kept draft",
  plain: "by the model alone",
};

// tokens: for each [text, source, log-probability or null, [[text, log-probability] …]]; the last
// one is the most probable tokens at its place.
export function tokenView(tokens) {
  const about = element("div", { class: "about", "aria-live": "polite" }, "Point at a token, or use ← and →.");
  const text = element("div", {
    class: "tokens",
    tabIndex: 0,
    dir: "auto",
    role: "group",
    "aria-label": "Tokens of the answer",
  });
  const spans = tokens.map(([shown, source]) => element("span", { class: `token ${source}` }, shown || "·"));
  text.append(...spans);
  let chosen = -1; // the index of the token that is described; -1: none
  const choose = (index) => {
    if (index < 0 || index >= spans.length) return;
    spans[chosen]?.classList.remove("now");
    chosen = index;
    spans[chosen].classList.add("now");
    about.replaceChildren(...description(tokens[chosen]));
  };
  text.addEventListener("pointerover", (event) => choose(spans.indexOf(event.target)));
  text.addEventListener("keydown", (event) => {
    const change = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!change) return;
    event.preventDefault();
    choose(chosen + change);
    spans[chosen]?.scrollIntoView({ block: "nearest" });
  });
  return element("div", {}, text, about);
}

function description([text, source, logprob, others]) {
  const percent = (value) => `${(100 * Math.exp(value)).toFixed(1)} %`;
  const quoted = (shown) => JSON.stringify(shown);
  const lines = [`${quoted(text)} ${SOURCES[source] ?? ""}${logprob === null ? "" : `, ${percent(logprob)}`}`];
  if (others?.length) lines.push(others.map(([other, chance]) => `${quoted(other)} ${percent(chance)}`).join("   "));
  return lines.map((line) => element("div", {}, line));
}

// The list of the sources with their colours.
// counts: the number of tokens from each source, if it is to be shown.
export function legend(counts) {
  return element(
    "ul",
    { class: "legend" },
    ...Object.entries(SOURCES).map(([source, words]) =>
      element(
        "li",
        {},
        element("span", { class: `token ${source}` }, "ab"),
        ` ${words}`,
        counts ? `: ${counts[source] ?? 0}` : "",
      ),
    ),
  );
}
