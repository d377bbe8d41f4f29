// Draws one message on the page.

import { $, button, element } from "./dom.js";
import { Markdown, copyText } from "./markdown.js";
import { toolOf } from "./mcp.js";
import { fileView } from "./pictures.js";
import { legend, tokenView } from "./tokens.js";

const STATES = {
  stopped: "Stopped.",
  partial: "Interrupted. The text so far is kept.",
  length: "The answer reached its token limit or the end of the context.",
};

export class MessageView {
  // actions: the functions edit, retry, goOn, result, decide and toVersion, which get the message.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.showsTokens = false;
    this.isRunning = false;
    this.versions = [];
    this.who = element("h2", { class: "who" });
    this.text = element("div", { class: "text", dir: "auto" });
    this.thoughts = element("div", { class: "plain", dir: "auto" });
    this.thinking = element(
      "details",
      { class: "thoughts", hidden: true },
      element("summary", {}, "Thoughts"),
      this.thoughts,
    );
    this.footer = element("div"); // files, calls, notes and buttons
    this.root = element("li", { class: `message ${message.role}` }, this.who, this.thinking, this.text, this.footer);
    this.markdown = message.role === "assistant" ? new Markdown(this.text) : null;
    this.update(true);
  }

  // Draws the texts of the message. isComplete: whether they will not grow any more.
  update(isComplete) {
    const { content, thoughts = "" } = this.message;
    this.thinking.hidden = !thoughts;
    if (thoughts.length !== this.thoughts.textContent.length) this.thoughts.textContent = thoughts;
    if (!this.showsTokens) {
      if (this.markdown) this.markdown.update(content, isComplete);
      else this.text.textContent = content;
    }
    if (isComplete) this.drawFooter();
  }

  // Changes the state of the message in its conversation. isRunning: whether the answer is still
  // coming; isLast: whether no message follows; isEdited: whether another version of it is being
  // written; versions: all versions of it.
  set(state) {
    Object.assign(this, state);
    this.root.toggleAttribute("data-running", state.isRunning);
    this.root.toggleAttribute("data-edited", state.isEdited);
    this.drawFooter();
  }

  drawFooter() {
    const { role, model, files = [], calls = [], error, state } = this.message;
    this.who.textContent = { user: "You", assistant: model ?? "Answer", tool: "Result of a tool" }[role];
    const note = this.isRunning ? null : (error ?? STATES[state]);
    this.footer.replaceChildren(
      ...files.map(fileView),
      ...calls.map((call) => this.callView(call)),
      ...this.speed(),
      ...(note ? [element("p", { class: error ? "error" : "note" }, note)] : []),
      ...(this.isRunning ? [] : [element("div", { class: "row actions" }, ...this.buttons())]),
    );
  }

  // A note of how fast a whole answer came, in a list; [] for any other message.
  speed() {
    const { num, ms } = this.message.took ?? {};
    if (this.isRunning || !ms) return [];
    return [element("p", { class: "note" }, `${((1000 * num) / ms).toFixed(1)} tokens/s, ${(ms / 1000).toFixed(1)} s`)];
  }

  callView(call) {
    const { name, json } = call;
    let shown = json;
    try {
      shown = JSON.stringify(JSON.parse(json), null, 2);
    } catch {
      // still coming, or cut off
    }
    return element(
      "div",
      { class: "call" },
      element("div", { class: "note" }, `calls ${name}`),
      element("pre", { tabIndex: 0 }, shown),
      ...this.choices(call),
    );
  }

  // The buttons by which the user decides about a call of an MCP server's tool; [] if there is
  // nothing to decide.
  choices(call) {
    const tool = toolOf(call.name);
    const waits = tool && this.isLast && !this.isRunning && this.message.state === "done" && call.result === undefined;
    if (!waits) return [];
    const choice = (text, word) => button(text, () => this.actions.decide(this.message, call, word));
    const lasting = [choice("Always in this chat", "chat"), choice("Always", "always")];
    const warning = tool.is_destructive ? "It may destroy something. " : "";
    return [
      element("p", { class: "note" }, `${warning}Make this call of ${tool.server}?`),
      element(
        "div",
        { class: "row" },
        choice("Once", "once"),
        ...(tool.is_destructive ? [] : lasting),
        choice("No", "no"),
      ),
    ];
  }

  buttons() {
    const { message, actions } = this;
    const copy = button("Copy", () => copyText(message.content, copy));
    if (message.role === "user") return [...this.arrows(), copy, button("Edit", () => actions.edit(message))];
    if (message.role === "tool") return [copy];
    const isCut = ["stopped", "partial", "length", "error"].includes(message.state);
    return [
      ...this.arrows(),
      copy,
      this.mayFit() && button("Retry", () => actions.retry(message)),
      this.isLast && isCut && message.content && button("Continue", () => actions.goOn(message)),
      message.tokens?.length &&
        button("Tokens", () => this.toggleTokens(), { "aria-pressed": String(this.showsTokens) }),
      this.isLast && message.calls?.length && button("Enter the result", () => actions.result(message)),
    ].filter(Boolean);
  }

  // Whether the prompt may fit into the context: if it was too long, it may fit another model.
  mayFit() {
    const { tooLong } = this.message;
    return !tooLong || (tooLong !== true && tooLong !== $("model").value);
  }

  // The buttons that lead to the other versions; [] if there are none.
  arrows() {
    const { versions } = this;
    if (versions.length < 2) return [];
    const at = versions.indexOf(this.message);
    const arrow = (sign, name, to) =>
      button(sign, () => this.actions.toVersion(versions.at(to % versions.length), name), { "aria-label": name });
    return [
      arrow("‹", "Earlier version", at - 1),
      element("span", {}, `${at + 1}/${versions.length}`),
      arrow("›", "Later version", at + 1),
    ];
  }

  toggleTokens() {
    this.showsTokens = !this.showsTokens;
    if (this.showsTokens) this.text.replaceChildren(tokenView(this.message.tokens), legend());
    else {
      this.markdown.clear();
      this.markdown.update(this.message.content, true);
    }
    this.drawFooter();
    this.footer.querySelector("[aria-pressed]")?.focus();
  }
}
