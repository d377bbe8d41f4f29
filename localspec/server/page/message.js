// One message on the page.

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
  // actions: edit, retry, goOn, result, decide, toVersion: functions that get the message.
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
    this.rest = element("div");
    this.root = element("li", { class: `message ${message.role}` }, this.who, this.thinking, this.text, this.rest);
    this.markdown = message.role === "assistant" ? new Markdown(this.text) : null;
    this.drawn = "";
    this.update(true);
  }

  // Draws what came; isComplete: no more will.
  update(isComplete) {
    const { content, thoughts = "" } = this.message;
    this.thinking.hidden = !thoughts;
    if (thoughts.length !== this.thoughts.textContent.length) this.thoughts.textContent = thoughts;
    if (!this.showsTokens) {
      if (this.markdown) this.markdown.update(content, isComplete);
      else this.text.textContent = content;
    }
    if (isComplete) this.drawRest();
  }

  // isRunning: its answer is still coming; isLast: nothing follows it; isEdited: another version
  // of it is being written; versions: all messages in its place.
  set(told) {
    Object.assign(this, told);
    this.root.toggleAttribute("data-running", told.isRunning);
    this.root.toggleAttribute("data-edited", told.isEdited);
    this.drawRest();
  }

  drawRest() {
    const { role, model, files = [], calls = [], error, state } = this.message;
    this.who.textContent = { user: "You", assistant: model ?? "Answer", tool: "Result of a tool" }[role];
    const note = this.isRunning ? null : (error ?? STATES[state]);
    this.rest.replaceChildren(
      ...files.map(fileView),
      ...calls.map((call) => this.call(call)),
      ...this.took(),
      ...(note ? [element("p", { class: error ? "error" : "note" }, note)] : []),
      ...(this.isRunning ? [] : [element("div", { class: "row actions" }, ...this.buttons())]),
    );
  }

  took() {
    const { num, ms } = this.message.took ?? {};
    if (this.isRunning || !ms) return [];
    return [element("p", { class: "note" }, `${((1000 * num) / ms).toFixed(1)} tokens/s, ${(ms / 1000).toFixed(1)} s`)];
  }

  call(call) {
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

  // What a person may answer to a call of an MCP server's tool that waits for it.
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

  // Whether another try can succeed: a prompt that was too long may fit another model.
  mayFit() {
    const { tooLong } = this.message;
    return !tooLong || (tooLong !== true && tooLong !== $("model").value);
  }

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
    this.drawRest();
    this.rest.querySelector("[aria-pressed]")?.focus();
  }
}
