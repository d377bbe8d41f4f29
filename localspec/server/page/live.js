// The live picture: how fast the answer comes, what drafts are worth, and why none was made.

import { $, element } from "./dom.js";
import { legend } from "./tokens.js";

const SAMPLES = 60; // of the speed, one each half second
const SVG = "http://www.w3.org/2000/svg";

export class Live {
  constructor() {
    this.speeds = [];
    this.model = null; // as /v1/models lists it
    this.memory = null; // bytes
  }

  begin() {
    this.speeds = [];
    this.num = 0;
    this.since = performance.now();
    this.numBefore = 0;
  }

  // A token came.
  token() {
    this.num += 1;
    const now = performance.now();
    const seconds = (now - this.since) / 1000;
    if (seconds < 0.5) return false;
    this.speeds.push((this.num - this.numBefore) / seconds);
    this.speeds = this.speeds.slice(-SAMPLES);
    this.since = now;
    this.numBefore = this.num;
    return true;
  }

  // Draws the picture of an answer, which may still grow.
  draw(message) {
    if ($("live").hidden) return;
    const { timings, explanation, usage } = message?.stats ?? {};
    const counts = {};
    for (const [, source] of message?.tokens ?? []) counts[source] = (counts[source] ?? 0) + 1;
    const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
    const steps = total - (counts.accepted ?? 0);
    const speed = timings ? timings.predicted_per_second : this.speeds.at(-1);
    const read = usage && usage.prompt_tokens + usage.completion_tokens;
    $("live").replaceChildren(
      element("h2", {}, "Live"),
      element("p", { class: "speed" }, speed ? speed.toFixed(1) : "–", element("small", {}, " tokens/s")),
      this.curve(),
      facts([
        ["Tokens per decode", steps ? (total / steps).toFixed(2) : null],
        ["Drafted tokens kept", timings?.draft_n ? `${timings.draft_n_accepted} of ${timings.draft_n} (${percent(timings.draft_n_accepted / timings.draft_n)})` : null],
        ["Why no draft", timings?.draft_off],
        ["First token after", timings && `${(timings.prompt_ms / 1000).toFixed(2)} s`],
        ["Prompt", timings && `${timings.prompt_n} tokens read, ${timings.cache_n} cached`],
        ["Threads", explanation?.threads && `${explanation.threads.num_threads} of ${explanation.threads.num_usable}${explanation.threads.is_busy ? ": the machine is busy" : ""}`],
        ["Next draft token", outlook(explanation?.outlook)],
        ["A decode alone", explanation?.outlook && `${(1000 * explanation.outlook.plain_step_s).toFixed(1)} ms`],
        ["A draft token", explanation?.outlook && `${(1000 * explanation.outlook.draft_token_s).toFixed(1)} ms`],
        ["Exact", explanation && (explanation.exact ? "yes, to the bit" : "by law")],
        ["Context", read && this.model && `${read} of ${this.model.max_model_len}`],
        ["Memory", this.memory && `${(this.memory / 1e9).toFixed(2)} GB`],
      ]),
      ...lengths(explanation?.steps_per_length),
      ...proposers(explanation?.proposers),
      element("h3", {}, "Where tokens came from"),
      legend(counts),
    );
  }

  curve() {
    const drawing = document.createElementNS(SVG, "svg");
    drawing.setAttribute("viewBox", `0 0 ${SAMPLES} 20`);
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", "Speed over time");
    const most = Math.max(...this.speeds, 1);
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", this.speeds.map((speed, at) => `${at},${20 - (19 * speed) / most}`).join(" "));
    drawing.append(line);
    return drawing;
  }
}

const percent = (share) => `${Math.round(100 * share)} %`;

function outlook(told) {
  if (!told) return null;
  const pays = told.break_even === null ? "never pays here" : `pays from ${percent(told.break_even)} on`;
  return `kept with ${percent(told.acceptance)}; ${pays}`;
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", {}, ...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function lengths(steps) {
  if (!steps?.length) return [];
  const most = Math.max(...steps, 1);
  const rows = steps.map((number, length) =>
    element("tr", {}, element("th", { scope: "row" }, String(length)), element("td", {}, element("meter", { max: most, value: number, "aria-label": `${number} steps` })), element("td", {}, String(number))),
  );
  return [element("h3", {}, "Steps by tokens drafted (K)"), element("table", { class: "bars" }, ...rows)];
}

function proposers(told) {
  const found = Object.entries(told ?? {});
  if (!found.length) return [];
  return [
    element("h3", {}, "Who drafted"),
    element("dl", {}, ...found.flatMap(([name, { accepted, drafted }]) => [element("dt", {}, name), element("dd", {}, `${accepted} of ${drafted} kept`)])),
  ];
}
