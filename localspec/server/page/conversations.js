// The list of conversations, and the one that is open.

import { $, button, element } from "./dom.js";
import { fromFile } from "./exchange.js";
import { MessageView } from "./message.js";
import { fileView } from "./pictures.js";
import { live, running, state, views } from "./state.js";
import * as store from "./store.js";

// What buttons at a message do, which others say: edit, retry, goOn, result.
export const actions = {};

// ---- The list

export async function drawList() {
  const words = $("search").value.trim();
  let found;
  try {
    found = await store.texts();
  } catch (error) {
    banner(`The conversations of this browser cannot be read: ${error.message}`);
    return;
  }
  const items = found
    .sort((one, other) => other.updated - one.updated)
    .filter((each) => !words || store.matches(each, words))
    .map((each) => {
      const title = element(
        "button",
        { type: "button", class: "quiet", dir: "auto", onclick: () => show(each.id) },
        each.title || "Untitled",
      );
      if (each.id === state.open.id) title.setAttribute("aria-current", "true");
      return element("li", {}, title);
    });
  const none = words ? "Nothing found." : "Your conversations will stand here.";
  $("list").replaceChildren(...(items.length ? items : [element("li", { class: "note" }, none)]));
}

// Returns whether it is kept.
export async function save(conversation) {
  conversation.updated = Date.now();
  const isKept = await keeping(() => store.put(conversation));
  if (isKept) await drawList();
  return isKept;
}

async function keeping(work) {
  try {
    await work();
    return true;
  } catch (error) {
    banner(`This browser does not keep the conversation: ${error.message}`);
    return false;
  }
}

export async function importFile(file) {
  const found = fromFile(file.name, await file.text());
  for (const each of found) await store.put({ ...store.newConversation(), ...each });
  await drawList();
  return found.length;
}

// ---- The open conversation

async function show(id) {
  const found = running.get(id)?.conversation ?? (await store.get(id));
  if (found) use(found);
}

// Opens a conversation, with what was typed and, soon after, what was attached there.
export function use(conversation) {
  openNow(conversation);
  state.attaching = state.attaching.then(async () => {
    const found = await store.getAttached(draftName(conversation)).catch(() => []);
    if (state.open !== conversation) return;
    // It may have been opened twice meanwhile.
    const isNew = (file) => !state.attached.some((other) => store.isSame(file, other));
    state.attached = [...found.filter(isNew), ...state.attached];
    drawState();
  });
}

export function openNow(conversation) {
  Object.assign(state, { open: conversation, attached: [] });
  sessionStorage.setItem("localspec.open", conversation.id);
  $("question").value = localStorage.getItem(draftName()) ?? "";
  document.body.classList.remove("shows-list");
  draw();
  drawList();
  grow();
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

// New chats share one, so that it outlives a reload. A copy has its own from the beginning.
export const draftName = ({ id, messages, isCopy } = state.open) =>
  store.nameOfDraft(isCopy || messages.length || running.has(id) ? id : undefined);

// What is typed outlives a reload.
export function keepDraft() {
  const text = $("question").value;
  if (text) localStorage.setItem(draftName(), text);
  else localStorage.removeItem(draftName());
}

// And so does what is attached.
export async function setAttached(files) {
  state.attached = files;
  drawState();
  await keeping(() => store.putAttached(draftName(), files));
}

// What was typed and attached was sent; what came after it stays. Without sent, nothing is
// wanted any more.
export async function forget(name, sent) {
  if (!sent || localStorage.getItem(name)?.trim() === sent.text) localStorage.removeItem(name);
  await keeping(() => (sent ? store.removeAttached(name, sent.files) : store.putAttached(name, [])));
}

export function grow() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, window.innerHeight / 3)}px`;
}

export function draw() {
  const { open } = state;
  $("title").textContent = open.title || "New chat";
  document.title = open.title ? `${open.title} · localspec` : "localspec";
  $("welcome").hidden = open.messages.length > 0;
  views.clear();
  for (const message of open.messages) views.set(message, new MessageView(message, actions));
  $("messages").replaceChildren(...[...views.values()].map((view) => view.root));
  drawState();
}

// What depends on whether an answer is coming.
export function drawState() {
  const { open, attached } = state;
  const run = running.get(open.id);
  open.messages.forEach((message, at) => {
    views.get(message)?.set(run?.message === message, at === open.messages.length - 1);
  });
  $("stop").hidden = !run;
  $("send").hidden = Boolean(run);
  $("files").replaceChildren(
    ...attached.map((file) =>
      element(
        "li",
        {},
        file.image ? fileView(file) : `${file.name} `,
        button("✕", () => setAttached(attached.filter((each) => each !== file)), {
          "aria-label": `Remove ${file.name}`,
        }),
      ),
    ),
  );
  if (!run) showProgress("");
  live.draw(run?.message ?? open.messages.findLast((each) => each.role === "assistant"), run?.pace);
}

export function add(message) {
  state.open.messages.push(message);
  const view = new MessageView(message, actions);
  views.set(message, view);
  $("messages").append(view.root);
  $("welcome").hidden = true;
  follow(true);
}

let follows = true; // whether the page keeps to the end of the answer
export function follow(always = false) {
  if (always || follows) $("scroll").scrollTop = $("scroll").scrollHeight;
}

export const scrolled = ({ target }) => (follows = target.scrollHeight - target.scrollTop - target.clientHeight < 40);

export function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

export function showProgress(words, share = null) {
  $("progress").hidden = share === null;
  if (share !== null) $("progress").firstElementChild.value = share;
  $("progress").lastElementChild.textContent = share === null ? "" : words;
  $("line").textContent = share === null ? words : "";
}
