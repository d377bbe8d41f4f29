// The list of conversations, and the one that is open.

import { $, button, element } from "./dom.js";
import { fromFile } from "./exchange.js";
import { MessageView } from "./message.js";
import { fileView } from "./pictures.js";
import { live, running, state, views } from "./state.js";
import * as store from "./store.js";
import { answeredElsewhere } from "./tabs.js";
import { append, shown, versionsOf } from "./versions.js";

export const ELSEWHERE = "This chat is being answered in another tab.";

// What buttons at a message do, which others say: edit, retry, goOn, result, toVersion.
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
        { type: "button", class: "quiet", dir: "auto", title: each.title, onclick: () => show(each.id) },
        element("span", { class: "name" }, each.title || "Untitled"),
        element("time", { class: "note" }, dateOf(each.updated)),
      );
      if (each.id === state.open.id) title.setAttribute("aria-current", "true");
      return element("li", {}, title);
    });
  const none = words ? "Nothing found." : "Your conversations will appear here.";
  $("list").replaceChildren(...(items.length ? items : [element("li", { class: "note" }, none)]));
}

// The time of today, and the date of another day.
function dateOf(ms) {
  const date = new Date(ms);
  return date.toDateString() === new Date().toDateString()
    ? date.toLocaleTimeString([], { timeStyle: "short" })
    : date.toLocaleDateString([], { dateStyle: "medium" });
}

// Returns whether it is kept.
export async function save(conversation) {
  const isKept = await keeping(() => store.put(conversation));
  if (isKept) await drawList();
  return isKept;
}

async function keeping(work) {
  try {
    await work();
    return true;
  } catch (error) {
    banner(`This browser could not save the conversation: ${error.message}`);
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

// Another tab has written something.
export async function refresh() {
  await drawList();
  const answered = [...running.values()].map(({ conversation }) => conversation);
  for (const each of new Set([state.open, ...answered])) await takeOver(each);
  await noteOthers();
}

// Lets a conversation have what other tabs have written of it.
export async function takeOver(conversation) {
  const before = outlineOf(conversation);
  const changed = await store.takeOver(conversation).catch(() => []);
  if (!changed) {
    running.get(conversation.id)?.abort.abort();
    if (conversation === state.open) {
      use(store.newConversation());
      banner("The chat was deleted in another tab.");
    }
    return;
  }
  if (conversation !== state.open) return;
  for (const message of changed) views.get(message)?.update(message.state !== "partial");
  if (outlineOf(conversation) !== before) draw();
  if (changed.length) follow();
}

// What of a conversation decides more than what stands in one message.
const outlineOf = (conversation) =>
  JSON.stringify([conversation.title, conversation.messages.map(({ id, state: at }) => [id, at]), conversation.end]);

export const isElsewhere = ({ id } = state.open) => state.elsewhere.has(id) && !running.has(id);

let asking;
// Finds out what other tabs answer, and asks again until they have ended: a tab that crashes says nothing.
export async function noteOthers() {
  clearTimeout(asking);
  const wasElsewhere = isElsewhere();
  state.elsewhere = await answeredElsewhere();
  clearTimeout(asking);
  if (state.elsewhere.size) asking = setTimeout(noteOthers, 1000);
  if (isElsewhere() === wasElsewhere) return;
  await takeOver(state.open);
  drawState();
}

export function use(conversation) {
  state.open = conversation;
  sessionStorage.setItem("localspec.open", conversation.id);
  document.body.classList.remove("shows-list");
  draw();
  drawList();
  useDraft();
  follow(true);
  takeOver(conversation).then(noteOthers);
}

// Shows what was typed for the next question, or for the one that is edited, and soon after what
// was attached.
export function useDraft() {
  const { open } = state;
  const name = draftName();
  $("question").value = localStorage.getItem(name) ?? "";
  grow();
  state.attached = [];
  drawState();
  state.attaching = state.attaching.then(async () => {
    const found = await store.getAttached(name).catch(() => []);
    if (state.open !== open || draftName() !== name) return;
    // It may have been opened twice meanwhile.
    const isNew = (file) => !state.attached.some((other) => store.isSame(file, other));
    state.attached = [...found.filter(isNew), ...state.attached];
    drawState();
  });
}

// New chats share one, so that it outlives a reload. A question that is edited has its own.
export const draftName = ({ id, messages, editing } = state.open) =>
  store.nameOfDraft(messages.length || running.has(id) ? id : undefined, editing);

// What is typed outlives a reload.
export function keepDraft() {
  const text = $("question").value;
  if (text || state.open.editing !== undefined) localStorage.setItem(draftName(), text);
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
  $("title").textContent = $("title").title = open.title || "New chat";
  document.title = open.title ? `${open.title} · localspec` : "localspec";
  const path = shown(open);
  $("welcome").hidden = path.length > 0;
  for (const [message, view] of views) {
    if (path.includes(message)) continue;
    view.root.remove();
    views.delete(message);
  }
  for (const message of path) {
    if (views.has(message)) continue;
    views.set(message, new MessageView(message, actions));
    $("messages").append(views.get(message).root);
  }
  drawState();
}

// What depends on whether an answer is coming.
export function drawState() {
  const { open, attached } = state;
  const run = running.get(open.id);
  const isAway = isElsewhere();
  const path = shown(open);
  path.forEach((message, at) =>
    views.get(message)?.set({
      isRunning: run?.message === message || (isAway && message.state === "partial"),
      isLast: at === path.length - 1,
      isEdited: open.messages[open.editing] === message,
      versions: versionsOf(open, message),
    }),
  );
  $("editing").hidden = open.editing === undefined;
  $("stop").hidden = !run;
  $("send").hidden = Boolean(run) || state.begins;
  $("send").disabled = isAway;
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
  if (!run) showProgress(isAway ? ELSEWHERE : "");
  live.draw(run?.message ?? path.findLast((each) => each.role === "assistant"), run?.pace);
}

export function add(message, path) {
  message.id = store.newId();
  append(state.open, message, path);
  draw();
  follow(true);
}

let follows = true; // whether the page keeps to the end of the answer
export function follow(always = false) {
  if (always) setFollows(true);
  if (follows) $("scroll").scrollTop = $("scroll").scrollHeight;
}

export const scrolled = ({ target }) => setFollows(target.scrollHeight - target.scrollTop - target.clientHeight < 40);

// Further up a button leads back to the end.
function setFollows(does) {
  follows = does;
  $("to-end").hidden = does;
}

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
