// An answer token by token: each in the colour of where it came from, with what else could have
// stood there.

import { element } from "./dom.js";

export const SOURCES = {
  accepted: "drafted and kept",
  recovered: "in place of a rejected one",
  bonus: "added after a fully kept draft",
  plain: "by the model alone",
};

// tokens: [text, source, log-probability or null, [[text, log-probability] …]]
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
  let now = -1;
  const choose = (index) => {
    if (index < 0 || index >= spans.length) return;
    spans[now]?.classList.remove("now");
    now = index;
    spans[now].classList.add("now");
    about.replaceChildren(...description(tokens[now]));
  };
  text.addEventListener("pointerover", (event) => choose(spans.indexOf(event.target)));
  text.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    choose(now + by);
    spans[now]?.scrollIntoView({ block: "nearest" });
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
