// The page: the list of conversations, the open one, and the live view of what the model does.

import { attach, edit, keepRun, send } from "./answers.js";
import {
  banner,
  draftName,
  draw,
  drawList,
  drawState,
  follow,
  forget,
  grow,
  importFile,
  keepDraft,
  noteOthers,
  refresh,
  save,
  scrolled,
  use,
} from "./conversations.js";
import { $, answerOf, button, counted, element, fileName, saveFile, say } from "./dom.js";
import { toJson, toMarkdown } from "./exchange.js";
import { noteModel, readModels } from "./models.js";
import { addDraftLengths, openSettings, readSettings, useForNew, useTheme } from "./settings.js";
import { running, state } from "./state.js";
import * as store from "./store.js";
import { onAnswering } from "./tabs.js";
import { shown } from "./versions.js";

const EXAMPLES = ["What is speculative decoding?", "Write a haiku about rain.", "Tell me a story about a fox."];

// Whether the live view covers the conversation: then it is not opened again after a reload.
const isNarrow = () => matchMedia("(max-width: 56rem)").matches;

// Phone keyboards have no Shift+Enter: there Enter starts a new line, and the button sends.
const FINGERS = matchMedia("(pointer: coarse)");

function fitToPointer() {
  $("question").placeholder = FINGERS.matches
    ? "Ask something. Enter for a new line; the button sends."
    : "Ask something. Enter to send, Shift+Enter for a new line.";
  $("question").enterKeyHint = FINGERS.matches ? "enter" : "send";
}

function toggleLive() {
  $("live").hidden = !$("live").hidden;
  localStorage.setItem("localspec.live", $("live").hidden ? "" : "1");
  $("show-live").setAttribute("aria-pressed", String(!$("live").hidden));
  drawState();
}

// Asks the user a question. Returns whether the answer is yes.
async function confirmed(text) {
  $("confirm-text").textContent = text;
  return (await answerOf($("confirm"))) === "yes";
}

async function remove() {
  if (!(await confirmed(`Delete “${state.open.title || "this chat"}”? This cannot be undone.`))) return;
  running.get(state.open.id)?.abort.abort();
  await forget(draftName());
  store.forgetTyped(store.nameOfDraft(state.open.id));
  await store.remove(state.open.id);
  use(store.newConversation());
}

async function removeAll() {
  if (!(await confirmed("Delete all conversations in this browser? This cannot be undone."))) return;
  for (const run of running.values()) run.abort.abort();
  await store.clear([state.open.id, ...running.keys()]);
  store.forgetTyped();
  $("settings").close();
  use(store.newConversation());
}

async function rename() {
  const field = $("ask-name").querySelector("input");
  field.value = state.open.title;
  if ((await answerOf($("ask-name"))) !== "yes" || !field.value.trim()) return;
  state.open.title = field.value.trim();
  draw();
  await save(state.open);
}

// A key was pressed in the field for a question.
function onQuestionKey(event) {
  if (event.isComposing) return; // an input method is composing a word
  const sends = FINGERS.matches ? event.ctrlKey || event.metaKey : !event.shiftKey;
  if (event.key === "Enter" && sends) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !$("question").value && state.open.editing === undefined) {
    const lastQuestion = shown(state.open).findLast(({ role }) => role === "user");
    if (lastQuestion) edit(lastQuestion);
  }
}

// Closes the menu when anything else gets the focus or a click.
function closeMenu({ target }) {
  if (!$("menu").contains(target)) $("menu").open = false;
}

// Does what a key pressed anywhere on the page is for: Escape, or Alt with a letter.
function onPageKey(event) {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if ($("menu").open) {
      $("menu").open = false;
      $("menu").querySelector("summary").focus();
    } else if (isNarrow() && document.body.classList.contains("shows-list")) {
      hideList();
      $("show-list").focus();
    } else if (running.has(state.open.id)) running.get(state.open.id).abort.abort();
    else if (state.open.editing !== undefined) edit();
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const act = { KeyN: newChat, KeyF: search, KeyL: toggleLive, KeyS: showSettings }[event.code];
  if (!act) return;
  event.preventDefault();
  act();
}

function newChat() {
  use(store.newConversation());
  $("question").focus();
}

function search() {
  document.body.classList.add("shows-list");
  $("search").focus();
}

const hideList = () => document.body.classList.remove("shows-list");

const showSettings = () => openSettings(state.open);

async function readFile(file) {
  try {
    say(`Imported: ${counted(await importFile(file), "conversation")}.`);
  } catch (error) {
    banner(error.message);
  }
}

// Connects the page's elements with what they do.
function connect() {
  const clicks = {
    new: newChat,
    "leave-edit": () => edit(),
    stop: () => running.get(state.open.id)?.abort.abort(),
    attach: () => $("attach-files").click(),
    import: () => $("import-file").click(),
    "export-all": async () =>
      saveFile(
        "localspec conversations.json",
        toJson((await store.all()).sort((first, second) => second.updated - first.updated)),
        "application/json",
      ),
    "export-md": () => saveFile(`${fileName(state.open.title)}.md`, toMarkdown(state.open), "text/markdown"),
    "export-json": () => saveFile(`${fileName(state.open.title)}.json`, toJson([state.open]), "application/json"),
    rename,
    delete: remove,
    "delete-all": removeAll,
    "show-list": search,
    "hide-list": hideList,
    "show-live": toggleLive,
    "hide-live": () => (toggleLive(), $("show-live").focus()),
    "show-settings": showSettings,
    "to-end": () => (follow(true), $("scroll").focus()),
    "use-for-new": () => useForNew(state.open),
  };
  for (const [id, act] of Object.entries(clicks)) $(id).onclick = act;
  $("menu").addEventListener("click", (event) => event.target.tagName === "BUTTON" && ($("menu").open = false));
  $("composer").onsubmit = (event) => (event.preventDefault(), send());
  $("question").onkeydown = onQuestionKey;
  FINGERS.addEventListener("change", fitToPointer);
  $("question").oninput = () => (grow(), keepDraft());
  $("search").oninput = drawList;
  $("settings").oninput = () => readSettings(state.open);
  $("settings").addEventListener("close", () =>
    state.open.messages.length ? save(state.open) : store.unsent.keep(state.open),
  );
  $("attach-files").onchange = ({ target }) => (attach([...target.files]), (target.value = ""));
  $("import-file").onchange = ({ target }) => (target.files[0] && readFile(target.files[0]), (target.value = ""));
  $("model").onchange = () => {
    state.open.settings.model = $("model").value;
    localStorage.setItem("localspec.model", $("model").value);
    noteModel();
  };
  $("scroll").onscroll = scrolled;
  document.addEventListener("keydown", onPageKey);
  document.addEventListener("pointerdown", closeMenu);
  document.addEventListener("focusin", closeMenu);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => (event.preventDefault(), attach([...event.dataTransfer.files])));
  document.addEventListener(
    "paste",
    (event) => event.clipboardData.files.length && (event.preventDefault(), attach([...event.clipboardData.files])),
  );
  addEventListener("pagehide", () => ($("question").value && keepDraft(), [...running.values()].forEach(keepRun)));
  store.onOtherTab(refresh);
  onAnswering(noteOthers);
  store.onUnblocked(() => (banner(""), drawList()));
}

async function start() {
  useTheme();
  fitToPointer();
  connect();
  addDraftLengths();
  const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  $("privacy").textContent = isLocal
    ? "Nothing leaves this machine. Conversations are kept in this browser."
    : `What you write goes to ${location.host} and nowhere else. Conversations are kept in this browser.`;
  $("examples").append(
    ...EXAMPLES.map((text) =>
      element(
        "li",
        {},
        button(text, () => (($("question").value = text), send())),
      ),
    ),
  );
  if (localStorage.getItem("localspec.live") && !isNarrow()) toggleLive();
  const id = sessionStorage.getItem("localspec.open") ?? "";
  use((await store.get(id).catch(() => null)) ?? { ...state.open, ...store.unsent.get(id) });
  await readModels();
  $("question").focus();
  await store.sweep().catch(drawList); // drawList shows the error
}

start();
