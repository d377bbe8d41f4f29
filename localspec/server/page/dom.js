// Short ways to find, make and use elements of the page.

export const $ = (id) => document.getElementById(id);

// A new element: element("button", { class: "quiet", onclick }, "Copy"). A name with a dash, or one
// that is no property of the element, sets an attribute. Children are elements or texts.
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name in node && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// counted(1, "word"): "1 word"; counted(2, "word"): "2 words".
export const counted = (num, name) => `${num} ${name}${num === 1 ? "" : "s"}`;

export const button = (text, onclick, properties = {}) =>
  element("button", { type: "button", class: "quiet", onclick, ...properties }, text);

// Has a screen reader say what happened.
export const say = (text) => ($("said").textContent = text);

// Opens a dialog. Returns a promise of the value of the button that closes it.
export function answerOf(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

const MOST_IN_NAME = 60; // characters of a title in the name of a file

// The name of a file for a conversation's title, without an extension.
export function fileName(title) {
  const plain = title.replace(/[^\p{L}\p{M}\p{N}._-]+/gu, " ");
  const short = [...plain].slice(0, MOST_IN_NAME).join("");
  return short.replace(/^[ ._-]+|[ ._-]+$/g, "") || "chat";
}

export function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
