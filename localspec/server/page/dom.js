// Elements in few words.

export const $ = (id) => document.getElementById(id);

// element("button", { class: "quiet", onclick }, "Copy"): properties, or attributes by a dash or
// where there is no property; children are elements or texts.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

// counted(1, "word"): "1 word"; counted(2, "word"): "2 words".
export const counted = (num, name) => `${num} ${name}${num === 1 ? "" : "s"}`;

export const button = (text, onclick, properties = {}) =>
  element("button", { type: "button", class: "quiet", onclick, ...properties }, text);

// Tells people who do not see the page what happened.
export const say = (text) => ($("said").textContent = text);

// Opens a dialog of this page; the value of the button that closed it.
export function answerOf(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

const MOST_IN_NAME = 60; // characters of a title

// A title as a name of a file, which has no end of its own yet.
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
