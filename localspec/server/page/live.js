// The live view: how fast an answer comes, what its drafts are worth, and why none was made.

import { $, counted, element } from "./dom.js";
import { legend } from "./tokens.js";

const SAMPLES = 60; // of the speed, one each half second
const SVG = "http://www.w3.org/2000/svg";

// Measures how fast an answer comes.
export class Pace {
  speeds = []; // tokens/s of the last half seconds
  num = 0; // tokens until now
  #firstMs = null; // when the first token came
  #lastMs = 0; // when the last token came
  #sampleMs = performance.now(); // when the last speed was taken
  #numAtSample = 0; // tokens until then

  // Counts a token. Returns whether there is a new speed.
  token() {
    this.num += 1;
    const nowMs = performance.now();
    this.#firstMs ??= nowMs;
    this.#lastMs = nowMs;
    const seconds = (nowMs - this.#sampleMs) / 1000;
    if (seconds < 0.5) return false;
    this.speeds = [...this.speeds, (this.num - this.#numAtSample) / seconds].slice(-SAMPLES);
    this.#sampleMs = nowMs;
    this.#numAtSample = this.num;
    return true;
  }

  // The timings of an answer that was stopped, in the fields of the server's timings.
  get timings() {
    return { predicted_n: this.num, predicted_ms: this.num && this.#lastMs - this.#firstMs };
  }
}

// Adds a step, as the server describes it, to the sums of an answer's steps. Returns the sums.
export function addStep(steps = { drafted: 0, accepted: 0, lengths: [], off: {} }, step) {
  steps.drafted += step.drafted;
  steps.accepted += step.accepted;
  for (let length = steps.lengths.length; length <= step.drafted; length++) steps.lengths.push(0);
  steps.lengths[step.drafted] += 1;
  if (step.draft_off) steps.off[step.draft_off] = (steps.off[step.draft_off] ?? 0) + 1;
  return Object.assign(steps, { last: step });
}

export class Live {
  model = null; // as /v1/models lists it
  memory = null; // bytes
  device = null; // in words
  outlook = null; // what the policy expected at the end of the last answer

  // Draws the facts about an answer.
  // pace: the speed of an answer that is still coming.
  draw(message, pace) {
    this.outlook = message?.stats?.explanation?.outlook ?? this.outlook;
    if ($("live").hidden) return;
    const { timings, explanation } = message?.stats ?? {};
    const counts = {};
    for (const [, source] of message?.tokens ?? []) counts[source] = (counts[source] ?? 0) + 1;
    const speed = pace ? pace.speeds.at(-1) : timings?.predicted_per_second;
    $("live-picture").replaceChildren(
      element("p", { class: "speed" }, speed ? speed.toFixed(1) : "–", element("small", {}, " tokens/s")),
      curve(pace?.speeds ?? message?.speeds ?? []),
      element("p", { class: "reason" }, reason(message, pace) ?? ""),
      facts([...drafting(message, counts), ...reading(timings), ...this.machine(message, pace)]),
      ...bars(
        "How many tokens each step drafted",
        (explanation?.steps_per_length ?? message?.steps?.lengths ?? []).entries(),
      ),
      ...costs(this.outlook),
      ...proposers(explanation?.proposers),
      element("h3", {}, "Where tokens came from"),
      legend(counts),
    );
  }

  // The names and values of facts about the machine and the context.
  machine(message, pace) {
    const { explanation, usage } = message?.stats ?? {};
    const last = message?.steps?.last;
    const used = pace ? last && last.prompt_tokens + pace.num : usage?.total_tokens;
    const threads = pace ? last?.threads : explanation?.threads?.num_threads;
    const { num_usable: usable, is_busy: isBusy } = explanation?.threads ?? {};
    return [
      ["Threads", threads && `${threads}${usable ? ` of ${usable}` : ""}${isBusy ? ": the machine is busy" : ""}`],
      ["Lossless", explanation && (explanation.exact ? "same text, bit for bit" : "same distribution")],
      ["Context", used && this.model && `${used} of ${counted(this.model.max_model_len, "token")}`],
      ["Memory", this.memory && `${(this.memory / 1e9).toFixed(2)} GB`],
      ["Device", this.device],
    ];
  }
}

// A drawing of the speeds over time.
function curve(speeds) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${SAMPLES} 20`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", "Speed over time");
  const fastest = Math.max(...speeds, 1);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", speeds.map((speed, at) => `${at},${20 - (19 * speed) / fastest}`).join(" "));
  drawing.append(line);
  return drawing;
}

const percent = (share) => `${Math.round(100 * share)} %`;

// What the last step drafted, or why it drafted nothing; for a whole answer, why most of its steps
// drafted nothing.
function reason(message, pace) {
  const last = message?.steps?.last;
  if (!pace) {
    const draftOff = message?.stats?.timings?.draft_off;
    return draftOff && `Where nothing was drafted: ${draftOff}.`;
  }
  if (!last) return null;
  return (
    last.draft_off ??
    (last.drafted ? `last step: ${last.drafted} drafted, ${last.accepted} kept` : "last step: no draft")
  );
}

// The names and values of facts about drafts.
// counts: the number of tokens from each source.
function drafting(message, counts) {
  const { timings, explanation } = message?.stats ?? {};
  const drafted = timings?.draft_n ?? message?.steps?.drafted;
  const accepted = timings?.draft_n_accepted ?? message?.steps?.accepted;
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const decodes = total - (counts.accepted ?? 0);
  return [
    ["Tokens per decode", decodes ? (total / decodes).toFixed(2) : null],
    ["Drafted tokens kept", drafted ? `${accepted} of ${drafted} (${percent(accepted / drafted)})` : null],
    ["Next draft token", outlookWords(explanation?.outlook)],
  ];
}

// The names and values of facts about reading the prompt.
function reading(timings) {
  return [
    ["First token after", timings && `${(timings.prompt_ms / 1000).toFixed(2)} s`],
    ["Prompt", timings && `${counted(timings.prompt_n, "token")} read, ${timings.cache_n} cached`],
  ];
}

// What the policy expects of the next draft token, in words.
function outlookWords(outlook) {
  if (!outlook) return null;
  const { acceptance, break_even: breakEven } = outlook;
  const worth = breakEven === null ? "never worth it here" : `worth it above ${percent(breakEven)}`;
  return `${percent(acceptance)} likely to be kept; ${worth}`;
}

// A list of facts.
// pairs: the name and the value of each; a fact without a value is left out.
function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "dl",
    {},
    ...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
  );
}

// A heading and a table of bars; [] if there are none.
// pairs: the name and the number of each bar. shown: makes the text of a number.
function bars(title, pairs, shown = String) {
  const rows = [...pairs];
  if (!rows.length) return [];
  const max = Math.max(...rows.map(([, value]) => value), 1);
  const drawn = rows.map(([name, value]) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, String(name)),
      element("td", {}, element("meter", { max, value, "aria-label": shown(value) })),
      element("td", {}, shown(value)),
    ),
  );
  return [element("h3", {}, title), element("table", { class: "bars" }, ...drawn)];
}

// What decodes and drafts cost on this machine, as the policy has measured it.
function costs(outlook) {
  if (!outlook) return [];
  const ratios = Object.entries(outlook.step_ratios ?? {});
  const times = [
    ["Decode of one token", `${(1000 * outlook.plain_step_s).toFixed(1)} ms`],
    ["Drafting one token", `${(1000 * outlook.draft_token_s).toFixed(1)} ms`],
  ];
  const title = "Cost of a decode of n tokens: v(n)";
  return [
    element("h3", {}, "Cost of a decode here"),
    facts(times),
    ...bars(title, ratios, (ratio) => ratio.toFixed(2)),
  ];
}

// How many tokens each proposer drafted, and how many of them were kept.
function proposers(counts) {
  const entries = Object.entries(counts ?? {});
  if (!entries.length) return [];
  return [
    element("h3", {}, "Drafted by"),
    facts(entries.map(([name, { accepted, drafted }]) => [name, `${accepted} of ${drafted} kept`])),
  ];
}
