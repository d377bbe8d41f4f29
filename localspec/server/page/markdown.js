// Draws Markdown while it arrives. HTML in a model's text is never used as HTML: marked shows it
// as text, and DOMPurify keeps only the tags that Markdown can make.

import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

const LONG = 20_000; // a block with more characters is shown as plain text
const LONG_MATHS = 5_000; // a formula with more characters is shown as it is written
const TAGS =
  "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li table thead tbody tr th td a span".split(" ");
const escaped = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
const plain = ({ raw }) => escaped(raw);

// A formula within a line. Between two $ it neither begins nor ends with a space, and no digit
// follows it: "$5 or 6$" and "5$, 6$" are money.
const INLINE =
  /^(?:\$\$[^]+?\$\$|\\\[[^]+?\\\]|\\\([^]+?\\\)|\$(?![\s$)/]|[.,;:?!]\s|\d[^$\n\\^_={}]*\s[a-z]{2})(?:[^$\n\\]|\\.)*?[^\s$\\]\$(?!\d))/i;
// A formula that is a block. One that is not closed yet counts, too, so that no line of it becomes
// a list or a heading.
const BLOCK = /^(?:\$\$|\\\[)(?:(?!\n[ \t]*\n|\$\$|\\\])[^])+(?:(?:\$\$|\\\])[ \t]*(?:\n|$)|(?=\n[ \t]*\n)|$)/;
// An extension of marked for formulas.
// level: "inline" or "block". form: matches a formula. start: matches where one may begin.
// tag: the tag of the element that shows it.
const maths = (level, form, start, tag) => ({
  name: `${level} maths`,
  level,
  start: (text) => text.search(start),
  tokenizer(text) {
    const raw = form.exec(text)?.[0];
    return raw && { type: `${level} maths`, raw };
  },
  renderer: ({ raw }) => `<${tag} class="maths">${escaped(raw.trim())}</${tag}>`,
});
const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [maths("inline", INLINE, /\$|\\[([]/, "span"), maths("block", BLOCK, /^(?:\$\$|\\\[)/m, "p")],
  renderer: {
    html: plain,
    image: ({ text, href }) => escaped(text || href), // nothing is fetched
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

// Typesets a formula. One that has an error, or is not closed yet, stays as it is written.
function setMaths(element) {
  const [, mark, tex] = /^(\$\$?|\\[([])([^]*?)(?:\$\$?|\\[\])])$/.exec(element.textContent) ?? [];
  if (!tex || tex.length > LONG_MATHS) return;
  const set = document.createElement("span");
  try {
    const isDisplayed = mark === "$$" || mark === "\\[";
    window.temml.render(tex, set, { displayMode: isDisplayed, throwOnError: true, maxSize: [40, 500] });
  } catch {
    return;
  }
  element.replaceChildren(...set.childNodes);
  if (element.tagName === "P") element.tabIndex = 0; // it scrolls
}

const ALLOWED = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "class", "start", "align", "title"],
  ADD_URI_SAFE_ATTR: ["start", "align"], // else only addresses may be their values
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName !== "A") return;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
});

let highlighting; // a promise of the library, which is loaded once there is code

async function highlight(code, language) {
  highlighting ??= import("./vendor/highlight.js").then((module) => module.default);
  const library = await highlighting;
  if (!library.getLanguage(language) || code.textContent.length > LONG) return;
  const { value } = library.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, ALLOWED));
}

// Puts a block of code under a heading with its language and a button that copies it. Returns the
// code's element, if there is one, and its language, or "".
function withHeading(pre) {
  const code = pre.querySelector("code");
  const language = /language-(\S+)/.exec(code?.className ?? "")?.[1] ?? "";
  const block = document.createElement("div");
  block.className = "code";
  const heading = document.createElement("div");
  heading.className = "row note";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", `Copy the code${language ? ` in ${language}` : ""}`);
  copy.onclick = () => copyText(pre.textContent, copy);
  heading.append(name, copy);
  pre.replaceWith(block);
  pre.tabIndex = 0; // it scrolls
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", `Code${language ? ` in ${language}` : ""}`);
  block.append(heading, pre);
  return { code, language };
}

// Copies a text, and shows on a button for a while whether that succeeded.
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed"; // by the browser, as on a plain http address elsewhere
  }
  setTimeout(() => (button.textContent = label), 1500);
}

// A growing text in Markdown, drawn into an element. Blocks that are complete are drawn once;
// only the last is drawn again when more of it comes.
export class Markdown {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.text = "";
    this.start = 0; // where the open block begins in the text
    this.open = document.createElement("div");
    this.element.append(this.open);
    this.isPlain = false;
  }

  // Draws the text as it is now. isComplete: whether it will not grow any more.
  update(text, isComplete = false) {
    if (!text.startsWith(this.text)) this.clear();
    this.text = text;
    if (this.isPlain || text.length - this.start > LONG) this.drawLong();
    if (this.isPlain) return;
    // A $ at the end waits for the next character, which says whether it closes a formula or begins
    // a price.
    const undrawn = isComplete ? text.slice(this.start) : text.slice(this.start).replace(/\$+$/, "");
    const blocks = marked.lexer(undrawn);
    // The last block that is not space stays open: a list may go on after an empty line, and a
    // complete answer may be continued.
    const lastIndex = blocks.findLastIndex((block) => block.type !== "space");
    const closed = blocks.slice(0, Math.max(lastIndex, 0));
    if (closed.length) {
      this.start += closed.reduce((length, block) => length + block.raw.length, 0);
      this.open.before(this.drawn(closed, true));
    }
    const last = blocks.slice(closed.length);
    this.open.replaceChildren(last.length ? this.drawn(last, isComplete) : "");
  }

  // The elements of blocks. isClosed: whether they will not change, so that code is highlighted.
  drawn(blocks, isClosed) {
    const fragment = DOMPurify.sanitize(marked.parser(blocks), ALLOWED);
    for (const pre of fragment.querySelectorAll("pre")) {
      const { code, language } = withHeading(pre);
      if (isClosed && code && language) highlight(code, language);
    }
    fragment.querySelectorAll("[class=maths]").forEach(setMaths);
    for (const table of fragment.querySelectorAll("table")) {
      const box = document.createElement("div");
      box.className = "table";
      box.tabIndex = 0;
      table.replaceWith(box);
      box.append(table);
    }
    return fragment;
  }

  // Draws an enormous block as plain text in pieces, since drawing all of it again and again would
  // take longer than the answer. The block ends at an empty line.
  drawLong() {
    if (!this.isPlain) {
      this.open.replaceChildren();
      this.piece = null;
    }
    const end = this.text.lastIndexOf("\n\n") + 2;
    // An empty line at the very start of a block does not end it. If part of the block is drawn, so
    // may be the first half of the empty line.
    const tooEarly = this.isPlain ? this.start : this.start + 2;
    this.isPlain = end <= tooEarly;
    const until = this.isPlain ? this.text.length : end;
    while (this.start < until) {
      if (!this.piece || this.piece.length >= LONG) {
        const box = document.createElement("div");
        box.className = "plain";
        this.piece = document.createTextNode("");
        box.append(this.piece);
        this.open.before(box);
      }
      const pieceEnd = Math.min(this.start + LONG - this.piece.length, until);
      this.piece.appendData(this.text.slice(this.start, pieceEnd));
      this.start = pieceEnd;
    }
  }
}
