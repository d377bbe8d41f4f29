// The page: conversations on the left, the one that is open, and what the model does.

import { ApiError, ask, loaded, models, rememberKey, sees } from "./api.js";
import { $, answerOf, button, element, saveFile, say } from "./dom.js";
import { fromFile, toJson, toMarkdown } from "./exchange.js";
import { textOf } from "./files.js";
import { Live, Pace, addStep } from "./live.js";
import { MessageView } from "./message.js";
import { fileView, isPicture, pictureOf } from "./pictures.js";
import { requestOf } from "./question.js";
import { addDraftLengths, fillSettings, readSettings, useTheme } from "./settings.js";
import * as store from "./store.js";

const SAVE_MS = 500; // between two savings of an answer that is coming
const COPIED = "This is a copy. The conversation as it was is in the list.";
const EXAMPLES = [
  "Explain speculative decoding in three sentences.",
  "Write a Python function that merges two sorted lists.",
  "Tell me a story about a fox.",
];

const live = new Live();
const running = new Map(); // conversation's id → what answers in it
const views = new Map(); // message → its view, of the conversation that is open
let served = []; // models, as /v1/models lists them
let open = store.newConversation();
let attached = [];
let attaching = Promise.resolve(); // what is sent waits for it
const unsent = new Map(); // what is attached to conversations that are not open

// ---- Conversations

async function conversations() {
  const found = await store.all();
  return found.sort((one, other) => other.updated - one.updated);
}

async function drawList() {
  const words = $("search").value.trim();
  const found = (await conversations()).filter((each) => !words || store.matches(each, words));
  const items = found.map((each) => {
    const title = element(
      "button",
      { type: "button", class: "quiet", dir: "auto", onclick: () => show(each.id) },
      each.title || "Untitled",
    );
    if (each.id === open.id) title.setAttribute("aria-current", "true");
    return element("li", {}, title);
  });
  const none = words ? "Nothing found." : "Your conversations will stand here.";
  $("list").replaceChildren(...(items.length ? items : [element("li", { class: "note" }, none)]));
}

async function save(conversation) {
  conversation.updated = Date.now();
  try {
    await store.put(conversation);
    await drawList();
  } catch (error) {
    banner(`This browser does not keep the conversation: ${error.message}`);
  }
}

async function show(id) {
  const found = running.get(id)?.conversation ?? (await store.get(id));
  if (found) use(found);
}

function use(conversation) {
  if (open) unsent.set(open.id, attached);
  open = conversation;
  attached = unsent.get(conversation.id) ?? [];
  sessionStorage.setItem("localspec.open", conversation.id);
  $("question").value = localStorage.getItem(draftName()) ?? "";
  document.body.classList.remove("shows-list");
  draw();
  drawList();
  grow();
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

const draftName = () => `localspec.draft.${open.messages.length || running.has(open.id) ? open.id : "new"}`;

// What is typed outlives a reload.
function keepDraft() {
  const text = $("question").value;
  if (text) localStorage.setItem(draftName(), text);
  else localStorage.removeItem(draftName());
}

// ---- The open conversation

function draw() {
  $("title").textContent = open.title || "New chat";
  document.title = open.title ? `${open.title} · localspec` : "localspec";
  $("welcome").hidden = open.messages.length > 0;
  views.clear();
  for (const message of open.messages) views.set(message, new MessageView(message, { edit, retry, goOn, result }));
  $("messages").replaceChildren(...[...views.values()].map((view) => view.root));
  drawState();
}

// What depends on whether an answer is coming.
function drawState() {
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
        button("✕", () => detach(file), { "aria-label": `Remove ${file.name}` }),
      ),
    ),
  );
  if (!run) showProgress("");
  live.draw(run?.message ?? open.messages.findLast((each) => each.role === "assistant"), run?.pace);
}

function add(message) {
  open.messages.push(message);
  const view = new MessageView(message, { edit, retry, goOn, result });
  views.set(message, view);
  $("messages").append(view.root);
  $("welcome").hidden = true;
  follow(true);
}

let follows = true; // whether the page keeps to the end of the answer
function follow(always = false) {
  if (always || follows) $("scroll").scrollTop = $("scroll").scrollHeight;
}

function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

function showProgress(words, share = null) {
  $("progress").hidden = share === null;
  if (share !== null) $("progress").firstElementChild.value = share;
  $("progress").lastElementChild.textContent = share === null ? "" : words;
  $("line").textContent = share === null ? words : "";
}

// ---- Asking

async function send() {
  const to = open;
  await attaching;
  if (to !== open) return;
  const text = $("question").value.trim();
  if (running.has(open.id) || (!text && !attached.length)) return;
  localStorage.removeItem(draftName());
  $("question").value = "";
  grow();
  open.title ||= (text || attached[0].name).slice(0, 60);
  add({ role: "user", content: text, files: attached });
  attached = [];
  $("title").textContent = open.title;
  await answer();
}

// continued: the answer to go on with. note: what the banner says meanwhile.
async function answer({ continued = null, note = "" } = {}) {
  const conversation = open;
  sessionStorage.setItem("localspec.open", conversation.id);
  let body;
  try {
    body = requestOf(conversation, $("model").value);
  } catch (error) {
    banner(error.message);
    await save(conversation);
    return;
  }
  banner(note);
  const message = continued ?? {
    role: "assistant",
    content: "",
    thoughts: "",
    calls: [],
    tokens: [],
    model: $("model").value,
  };
  message.state = "partial";
  delete message.error;
  delete message.stats; // of what is there already
  if (!continued) add(message);
  const run = {
    conversation,
    message,
    abort: new AbortController(),
    savedMs: performance.now(),
    drawMs: 0,
    waits: false,
    pace: new Pace(),
  };
  running.set(conversation.id, run);
  drawState();
  progressOf(run, "Waiting for the model.");
  say("The answer is coming.");
  await save(conversation);
  try {
    await ask(body, run.abort.signal, (event) => take(run, event));
    if (message.state === "partial") message.state = "done";
  } catch (error) {
    if (error.name === "AbortError") message.state = "stopped";
    else Object.assign(message, { state: "error", error: error.message });
    if (error instanceof ApiError && error.status === 401) run.needsKey = true;
    if (error.status === 413)
      message.error +=
        " Pictures and files of a conversation are sent with each question: begin a new chat, or edit a question and leave some out.";
    if (error instanceof ApiError && error.status === 0) waitForServer();
  }
  running.delete(conversation.id);
  message.speeds = run.pace.speeds;
  if (conversation === open) {
    views.get(message)?.update(true);
    drawState();
    follow();
  }
  say(
    message.error
      ? `The answer failed: ${message.error}`
      : `The answer is complete: ${message.content.split(/\s+/).length} words.`,
  );
  await save(conversation);
  await noteMemory();
  if (run.needsKey && (await askKey())) await retryEmpty(conversation, message);
}

async function retryEmpty(conversation, message) {
  if (conversation !== open || message.content) return;
  open.messages.pop();
  draw();
  await answer();
}

// One event of the stream.
function take(run, event) {
  const { message } = run;
  if (event.queue_position !== undefined) {
    const place = event.queue_position;
    progressOf(run, place ? `In line for the model, at place ${place}.` : "The model works.");
  }
  if (event.prompt_progress) {
    const { processed, total } = event.prompt_progress;
    progressOf(run, `Reading the prompt: ${processed} of ${total} tokens.`, processed / total);
  }
  const [choice] = event.choices ?? [];
  if (choice) takeChoice(run, choice);
  for (const name of ["timings", "explanation", "usage"]) {
    if (event[name]) message.stats = { ...message.stats, [name]: event[name] };
  }
  if (!run.waits) {
    run.waits = true;
    // At most a fifth of the time goes to drawing, however long the answer is.
    setTimeout(() => requestAnimationFrame(() => drawRun(run)), 4 * run.drawMs);
  }
}

function progressOf(run, words, share = null) {
  if (run.conversation === open) showProgress(words, share);
}

function takeChoice(run, { delta, provenance, step, logprobs, finish_reason: reason }) {
  const { message } = run;
  message.content += delta.content ?? "";
  message.thoughts += delta.reasoning_content ?? "";
  for (const call of delta.tool_calls ?? []) {
    message.calls[call.index] ??= { id: call.id, name: call.function.name, json: "" };
    message.calls[call.index].json += call.function.arguments ?? "";
  }
  if (reason === "length") message.state = "length";
  if (step) message.steps = addStep(message.steps, step);
  if (!provenance) return;
  if (!run.pace.num) progressOf(run, "");
  const [found] = logprobs?.content ?? [];
  const others = found?.top_logprobs.map((each) => [each.token, each.logprob]) ?? [];
  message.tokens.push([
    found?.token ?? delta.content ?? delta.reasoning_content ?? "",
    provenance,
    found?.logprob ?? null,
    others,
  ]);
  if (run.pace.token() && run.conversation === open) live.draw(message, run.pace);
}

function drawRun(run) {
  const began = performance.now();
  run.waits = false;
  if (!running.has(run.conversation.id)) return;
  if (run.conversation === open) {
    views.get(run.message)?.update(false);
    if (run.message.calls.length) views.get(run.message)?.drawRest();
    follow();
  }
  run.drawMs = performance.now() - began;
  if (began - run.savedMs > SAVE_MS) {
    run.savedMs = began;
    store.put(run.conversation).catch(() => {});
  }
}

const goOn = (continued) => answer({ continued });

// A conversation that begins as the open one, so that what comes after stays where it is.
function branch(number) {
  const copy = { ...store.newConversation(), title: `${open.title} ↳`, settings: { ...open.settings } };
  copy.messages = structuredClone(open.messages.slice(0, number));
  use(copy);
}

async function retry(message) {
  if (running.has(open.id)) return;
  const at = open.messages.indexOf(message);
  if (message.content || at < open.messages.length - 1) {
    branch(at);
    await answer({ note: COPIED });
  } else {
    open.messages.pop();
    draw();
    await answer();
  }
}

function edit(message) {
  if (running.has(open.id)) return;
  const { content, files = [] } = message;
  branch(open.messages.indexOf(message));
  banner(COPIED);
  $("question").value = content;
  attached = structuredClone(files);
  drawState();
  grow();
  $("question").focus();
}

// A form for what the called tools returned.
function result(message) {
  const fields = message.calls.map(({ name }) =>
    element("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: `What ${name} returns` }),
  );
  const sendResults = async () => {
    form.remove();
    message.calls.forEach((call, at) => add({ role: "tool", content: fields[at].value, callId: call.id }));
    await answer();
  };
  const form = element("div", { class: "results" }, ...fields, button("Send", sendResults, { class: "primary" }));
  views.get(message).rest.append(form);
  fields[0].focus();
}

// ---- Files

const attach = (files, to = open) => (attaching = attaching.then(() => attachTo(to, files)));

async function attachTo(conversation, files) {
  for (const file of files) {
    try {
      if (isPicture(file)) await requireSight(file.name);
      const read = isPicture(file) ? await pictureOf(file) : { name: file.name, text: await textOf(file) };
      if (conversation !== open)
        throw new Error(`${file.name} is not attached: another conversation was opened meanwhile.`);
      attached = [...attached, read];
      banner("");
    } catch (error) {
      banner(error.message);
    }
  }
  drawState();
}

async function requireSight(name) {
  const model = $("model").value;
  if (await sees(model)) return;
  throw new Error(
    `${model} sees no pictures, so ${name} is not attached. Choose a model that does, or start the server with its projector (--mmproj).`,
  );
}

function detach(file) {
  attached = attached.filter((each) => each !== file);
  drawState();
}

async function importFile(file) {
  try {
    const found = fromFile(file.name, await file.text());
    for (const each of found) await store.put({ ...store.newConversation(), ...each });
    await drawList();
    say(`${found.length} conversations were imported.`);
  } catch (error) {
    banner(error.message);
  }
}

// ---- Server and settings

async function askKey() {
  const said = await answerOf($("key"));
  const field = $("key").querySelector("input");
  if (said !== "ok" || !field.value) return false;
  rememberKey(field.value);
  field.value = "";
  await readModels();
  return true;
}

async function readModels() {
  try {
    served = await models();
    banner("");
  } catch (error) {
    if (error.status === 401) return askKey();
    banner(error.message);
    waitForServer();
    return;
  }
  const chosen = open.settings.model ?? localStorage.getItem("localspec.model");
  $("model").replaceChildren(...served.map((each) => element("option", { value: each.id }, each.id)));
  if (served.some((each) => each.id === chosen)) $("model").value = chosen;
  await noteModel();
}

async function noteModel() {
  live.model = served.find((each) => each.id === $("model").value) ?? null;
  live.outlook = null;
  await noteMemory();
}

async function noteMemory() {
  const name = $("model").value;
  const found = await loaded().catch(() => []);
  live.memory = found.find((each) => [name, `${name}:latest`].includes(each.name))?.size ?? null;
  drawState();
}

let waiting = null;
function waitForServer() {
  waiting ??= setInterval(async () => {
    const isThere = await fetch("health").then(
      (response) => response.ok,
      () => false,
    );
    if (!isThere) return;
    clearInterval(waiting);
    waiting = null;
    await readModels();
    say("The server is back.");
  }, 2000);
}

function toggleLive() {
  $("live").hidden = !$("live").hidden;
  localStorage.setItem("localspec.live", $("live").hidden ? "" : "1");
  $("show-live").setAttribute("aria-pressed", String(!$("live").hidden));
  drawState();
}

// ---- Everything that is clicked and typed

function grow() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, window.innerHeight / 3)}px`;
}

async function confirmed(text) {
  $("confirm-text").textContent = text;
  return (await answerOf($("confirm"))) === "yes";
}

async function remove() {
  if (!(await confirmed(`Delete “${open.title || "this chat"}”? It cannot be brought back.`))) return;
  running.get(open.id)?.abort.abort();
  localStorage.removeItem(draftName());
  await store.remove(open.id);
  use(store.newConversation());
}

async function removeAll() {
  if (!(await confirmed("Delete all conversations of this browser? They cannot be brought back."))) return;
  for (const run of running.values()) run.abort.abort();
  await store.clear();
  $("settings").close();
  use(store.newConversation());
}

async function rename() {
  const field = $("ask-name").querySelector("input");
  field.value = open.title;
  if ((await answerOf($("ask-name"))) !== "yes" || !field.value.trim()) return;
  open.title = field.value.trim();
  $("title").textContent = open.title;
  await save(open);
}

function typed(event) {
  if (event.isComposing) return; // a word of an input method
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !$("question").value) {
    const last = open.messages.findLast((each) => each.role === "user");
    if (last) edit(last);
  }
}

function shortcut(event) {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running.get(open.id)?.abort.abort();
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

function showSettings() {
  fillSettings(open);
  $("settings").showModal();
}

const exportName = () => (open.title || "chat").slice(0, 60);

function wire() {
  const clicks = {
    new: newChat,
    stop: () => running.get(open.id)?.abort.abort(),
    attach: () => $("attach-files").click(),
    import: () => $("import-file").click(),
    "export-all": async () =>
      saveFile("localspec conversations.json", toJson(await conversations()), "application/json"),
    "export-md": () => saveFile(`${exportName()}.md`, toMarkdown(open), "text/markdown"),
    "export-json": () => saveFile(`${exportName()}.json`, toJson([open]), "application/json"),
    rename,
    delete: remove,
    "delete-all": removeAll,
    "show-list": search,
    "hide-list": () => document.body.classList.remove("shows-list"),
    "show-live": toggleLive,
    "show-settings": showSettings,
  };
  for (const [id, act] of Object.entries(clicks)) $(id).onclick = act;
  $("menu").addEventListener("click", (event) => event.target.tagName === "BUTTON" && ($("menu").open = false));
  $("composer").onsubmit = (event) => (event.preventDefault(), send());
  $("question").onkeydown = typed;
  $("question").oninput = () => (grow(), keepDraft());
  $("search").oninput = drawList;
  $("settings").oninput = () => readSettings(open);
  $("settings").addEventListener("close", () => open.messages.length && save(open));
  $("attach-files").onchange = ({ target }) => (attach([...target.files]), (target.value = ""));
  $("import-file").onchange = ({ target }) => (target.files[0] && importFile(target.files[0]), (target.value = ""));
  $("model").onchange = () => {
    open.settings.model = $("model").value;
    localStorage.setItem("localspec.model", $("model").value);
    noteModel();
  };
  $("scroll").onscroll = ({ target }) => (follows = target.scrollHeight - target.scrollTop - target.clientHeight < 40);
  document.addEventListener("keydown", shortcut);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => (event.preventDefault(), attach([...event.dataTransfer.files])));
  document.addEventListener(
    "paste",
    (event) => event.clipboardData.files.length && (event.preventDefault(), attach([...event.clipboardData.files])),
  );
  addEventListener(
    "pagehide",
    () => (keepDraft(), [...running.values()].forEach((run) => store.put(run.conversation))),
  );
  store.onOtherTab(drawList);
}

async function start() {
  useTheme();
  wire();
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
  if (localStorage.getItem("localspec.live")) toggleLive();
  use((await store.get(sessionStorage.getItem("localspec.open") ?? "").catch(() => null)) ?? open);
  await readModels();
  $("question").focus();
}

start();
