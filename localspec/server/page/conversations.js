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

// What the buttons at a message do: edit, retry, goOn, result, decide, toVersion. answers.js sets
// them.
export const actions = {};

// ---- The list

export async function drawList() {
  const words = $("search").value.trim();
  let conversations;
  try {
    conversations = await store.texts();
  } catch (error) {
    banner(`The conversations of this browser cannot be read: ${error.message}`);
    return;
  }
  const items = conversations
    .sort((first, second) => second.updated - first.updated)
    .filter((conversation) => !words || store.matches(conversation, words))
    .map(({ id, title, updated }) => {
      const entry = element(
        "button",
        { type: "button", class: "quiet", dir: "auto", title, onclick: () => show(id) },
        element("span", { class: "name" }, title || "Untitled"),
        element("time", { class: "note" }, dateOf(updated)),
      );
      if (id === state.open.id) entry.setAttribute("aria-current", "true");
      return element("li", {}, entry);
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

// Stores a conversation. Returns whether that succeeded.
export async function save(conversation) {
  const isStored = await stores(() => store.put(conversation));
  if (isStored) await drawList();
  return isStored;
}

// Whether work that stores something succeeds. Else it shows the error.
async function stores(work) {
  try {
    await work();
    return true;
  } catch (error) {
    banner(`This browser could not save the conversation: ${error.message}`);
    return false;
  }
}

// Stores the conversations in a file. Returns their number. Throws an Error with what is wrong.
export async function importFile(file) {
  const conversations = fromFile(file.name, await file.text());
  for (const conversation of conversations) await store.put({ ...store.newConversation(), ...conversation });
  await drawList();
  return conversations.length;
}

// ---- The open conversation

async function show(id) {
  const conversation = running.get(id)?.conversation ?? (await store.get(id));
  if (conversation) use(conversation);
}

// Shows what another tab has stored.
export async function refresh() {
  await drawList();
  const answered = [...running.values()].map(({ conversation }) => conversation);
  for (const conversation of new Set([state.open, ...answered])) await takeOver(conversation);
  await noteOthers();
}

// Merges what other tabs have stored of a conversation into this tab's copy, and shows it. If one
// has deleted it, its answer here is stopped, and a new chat takes its place if it was open.
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

// A text that changes when more of a conversation has to be drawn than the texts of messages.
const outlineOf = (conversation) =>
  JSON.stringify([conversation.title, conversation.messages.map(({ id, state: at }) => [id, at]), conversation.end]);

export const isElsewhere = ({ id } = state.open) => state.elsewhere.has(id) && !running.has(id);

let nextCheck; // the timer of the next call of noteOthers
// Notes which conversations other tabs answer, again and again until there are none: a tab that
// crashes sends no message.
export async function noteOthers() {
  clearTimeout(nextCheck);
  const wasElsewhere = isElsewhere();
  state.elsewhere = await answeredElsewhere();
  clearTimeout(nextCheck);
  if (state.elsewhere.size) nextCheck = setTimeout(noteOthers, 1000);
  if (isElsewhere() === wasElsewhere) return;
  await takeOver(state.open);
  drawState();
}

// Opens a conversation.
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

// Shows the draft of the next question, or of the question that is edited: its text at once, its
// files soon after.
export function useDraft() {
  const { open } = state;
  const name = draftName();
  $("question").value = localStorage.getItem(name) ?? "";
  grow();
  state.attached = [];
  drawState();
  state.attaching = state.attaching.then(async () => {
    const stored = await store.getAttached(name).catch(() => []);
    if (state.open !== open || draftName() !== name) return;
    // The draft may have been opened twice while its files were read.
    const isNew = (file) => !state.attached.some((other) => store.isSame(file, other));
    state.attached = [...stored.filter(isNew), ...state.attached];
    drawState();
  });
}

// The name of a conversation's draft. All new chats share one, so that it outlives a reload. A
// question that is edited has a draft of its own.
export const draftName = ({ id, messages, editing } = state.open) =>
  store.nameOfDraft(messages.length || running.has(id) ? id : undefined, editing);

// Stores the text of the draft, so that it outlives a reload.
export function keepDraft() {
  const text = $("question").value;
  if (text || state.open.editing !== undefined) localStorage.setItem(draftName(), text);
  else localStorage.removeItem(draftName());
}

// Shows and stores the files of the draft.
export async function setAttached(files) {
  state.attached = files;
  drawState();
  await stores(() => store.putAttached(draftName(), files));
}

// Deletes a draft.
// sent: the text and the files that were sent, if only these are to be deleted, and not what was
// typed or attached since.
export async function forget(name, sent) {
  if (!sent || localStorage.getItem(name)?.trim() === sent.text) localStorage.removeItem(name);
  await stores(() => (sent ? store.removeAttached(name, sent.files) : store.putAttached(name, [])));
}

// Fits the height of the field for a question to its text.
export function grow() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, window.innerHeight / 3)}px`;
}

// Draws the open conversation.
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

// Draws what depends on whether an answer is coming: buttons, notes, attached files, live view.
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
        button("✕", () => setAttached(attached.filter((other) => other !== file)), {
          "aria-label": `Remove ${file.name}`,
        }),
      ),
    ),
  );
  if (!run) showProgress(isAway ? ELSEWHERE : "");
  live.draw(run?.message ?? path.findLast(({ role }) => role === "assistant"), run?.pace);
}

// Adds a message to the open conversation.
// path: the messages that lead to it.
export function add(message, path) {
  message.id = store.newId();
  append(state.open, message, path);
  draw();
  follow(true);
}

let follows = true; // whether the page stays at the end of the answer while it grows
// Scrolls to the end, if the page follows the answer.
// always: whether to scroll and to follow the answer in any case.
export function follow(always = false) {
  if (always) setFollows(true);
  if (follows) $("scroll").scrollTop = $("scroll").scrollHeight;
}

export const scrolled = ({ target }) => setFollows(target.scrollHeight - target.scrollTop - target.clientHeight < 40);

// While the page does not follow the answer, a button leads back to its end.
function setFollows(value) {
  follows = value;
  $("to-end").hidden = value;
}

export function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

// Shows the progress of an answer in words, and as a bar if it has a share from 0 to 1.
export function showProgress(words, share = null) {
  $("progress").hidden = share === null;
  if (share !== null) $("progress").firstElementChild.value = share;
  $("progress").lastElementChild.textContent = share === null ? "" : words;
  $("line").textContent = share === null ? words : "";
}
