// The live view: how fast the answer comes, what drafts are worth, and why none was made.

import { $, counted, element } from "./dom.js";
import { legend } from "./tokens.js";

const SAMPLES = 60; // of the speed, one each half second
const SVG = "http://www.w3.org/2000/svg";

// How fast an answer comes.
export class Pace {
  speeds = []; // tokens/s of the last half seconds
  num = 0; // tokens so far
  #first = null; // when the first came, and the last
  #last = 0;
  #since = performance.now();
  #before = 0; // tokens until then

  // A token came: whether there is a new speed.
  token() {
    this.num += 1;
    const now = performance.now();
    this.#first ??= now;
    this.#last = now;
    const seconds = (now - this.#since) / 1000;
    if (seconds < 0.5) return false;
    this.speeds = [...this.speeds, (this.num - this.#before) / seconds].slice(-SAMPLES);
    this.#since = now;
    this.#before = this.num;
    return true;
  }

  // As the server says it of an answer that it ends itself.
  get timings() {
    return { predicted_n: this.num, predicted_ms: this.num && this.#last - this.#first };
  }
}

// Adds a step, as the server tells it, to what is known of an answer's steps.
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

  // Draws the picture of an answer; pace: while it is coming.
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

function curve(speeds) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", `0 0 ${SAMPLES} 20`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", "Speed over time");
  const most = Math.max(...speeds, 1);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", speeds.map((speed, at) => `${at},${20 - (19 * speed) / most}`).join(" "));
  drawing.append(line);
  return drawing;
}

const percent = (share) => `${Math.round(100 * share)} %`;

// What the drafts do now, or why there are none; of a whole answer, why most steps had none.
function reason(message, pace) {
  const last = message?.steps?.last;
  if (!pace) {
    const off = message?.stats?.timings?.draft_off;
    return off && `Where nothing was drafted: ${off}.`;
  }
  if (!last) return null;
  return (
    last.draft_off ??
    (last.drafted ? `last step: ${last.drafted} drafted, ${last.accepted} kept` : "last step: no draft")
  );
}

function drafting(message, counts) {
  const { timings, explanation } = message?.stats ?? {};
  const drafted = timings?.draft_n ?? message?.steps?.drafted;
  const accepted = timings?.draft_n_accepted ?? message?.steps?.accepted;
  const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const decodes = total - (counts.accepted ?? 0);
  return [
    ["Tokens per decode", decodes ? (total / decodes).toFixed(2) : null],
    ["Drafted tokens kept", drafted ? `${accepted} of ${drafted} (${percent(accepted / drafted)})` : null],
    ["Next draft token", outlookWords(explanation?.outlook)],
  ];
}

function reading(timings) {
  return [
    ["First token after", timings && `${(timings.prompt_ms / 1000).toFixed(2)} s`],
    ["Prompt", timings && `${counted(timings.prompt_n, "token")} read, ${timings.cache_n} cached`],
  ];
}

function outlookWords(told) {
  if (!told) return null;
  const pays = told.break_even === null ? "never worth it here" : `worth it above ${percent(told.break_even)}`;
  return `${percent(told.acceptance)} likely to be kept; ${pays}`;
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "dl",
    {},
    ...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
  );
}

// A table of bars: pairs of what a row is about and its number.
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

function costs(told) {
  if (!told) return [];
  const measured = Object.entries(told.step_ratios ?? {});
  const times = [
    ["Decode of one token", `${(1000 * told.plain_step_s).toFixed(1)} ms`],
    ["Drafting one token", `${(1000 * told.draft_token_s).toFixed(1)} ms`],
  ];
  const title = "Cost of a decode of n tokens: v(n)";
  return [
    element("h3", {}, "Cost of a decode here"),
    facts(times),
    ...bars(title, measured, (ratio) => ratio.toFixed(2)),
  ];
}

function proposers(told) {
  const found = Object.entries(told ?? {});
  if (!found.length) return [];
  return [
    element("h3", {}, "Drafted by"),
    facts(found.map(([name, { accepted, drafted }]) => [name, `${accepted} of ${drafted} kept`])),
  ];
}
