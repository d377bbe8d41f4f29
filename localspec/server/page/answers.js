// Asks questions, reads their answers, and attaches files to questions.

import { ApiError, ask, callTool, sees } from "./api.js";
import {
  ELSEWHERE,
  actions,
  add,
  banner,
  draftName,
  draw,
  drawState,
  follow,
  forget,
  grow,
  isElsewhere,
  noteOthers,
  save,
  setAttached,
  showProgress,
  takeOver,
  useDraft,
} from "./conversations.js";
import { $, button, counted, element, say } from "./dom.js";
import { textOf } from "./files.js";
import { Pace, addStep } from "./live.js";
import { allow, mayCall, toolOf } from "./mcp.js";
import { askKey, noteMemory, waitForServer } from "./models.js";
import { isImage, isPicture, pictureOf } from "./pictures.js";
import { requestOf } from "./question.js";
import { areRight } from "./settings.js";
import { live, running, state, views } from "./state.js";
import * as store from "./store.js";
import { alone } from "./tabs.js";
import { placeBefore, shown, turnTo } from "./versions.js";

const SAVE_MS = 500; // an answer that is coming is stored at most this often
const MOST_CALLS = 20; // of MCP servers' tools after one question

// Asks the question that is typed.
export async function send() {
  const { open } = state;
  await state.attaching;
  if (open !== state.open || !($("question").value.trim() || state.attached.length)) return;
  await answerAlone(() => {
    const text = $("question").value.trim();
    const files = state.attached;
    const sent = { name: draftName(), text, files };
    const path = pathBefore(open.messages[open.editing]);
    if (open.editing === undefined) {
      $("question").value = "";
      grow();
      state.attached = [];
    } else {
      delete open.editing;
      useDraft();
    }
    add({ role: "user", content: text, files }, path);
    return { sent };
  });
}

// Has the open conversation answered, unless it is being answered, here or in another tab.
// prepare: called once nothing prevents the answer; returns the argument of `answer`.
async function answerAlone(prepare) {
  const { open } = state;
  if (running.has(open.id)) return;
  let run = null;
  let isAlone = false;
  state.begins = true;
  drawState();
  try {
    isAlone = await alone(open.id, async () => {
      await takeOver(open); // another tab may just have asked something
      const request = open === state.open && areRight(open) && prepare();
      state.begins = false;
      if (request) run = await answer(request);
    });
  } finally {
    state.begins = false;
    drawState();
  }
  if (run) await end(run);
  if (isAlone) return;
  await noteOthers();
  say(ELSEWHERE);
}

// The messages that lead to a message of the open conversation; without one, all that are shown.
function pathBefore(message) {
  const { open } = state;
  return message ? shown({ ...open, end: placeBefore(open, open.messages.indexOf(message)) }) : shown(open);
}

// Stores a conversation, and then deletes the draft that was sent. Returns whether it is stored.
// sent: the name, the text and the files of the draft; null without one.
async function saveSent(conversation, sent) {
  const isStored = await save(conversation);
  if (isStored && sent) await forget(sent.name, sent);
  return isStored;
}

// Requests an answer in the open conversation, and stores it. Returns the run once it has ended.
// path: the messages that are answered. continued: an answer to be continued; null for a new one.
// sent: see `saveSent`.
async function answer({ path = shown(state.open), continued = null, sent = null } = {}) {
  const conversation = state.open;
  sessionStorage.setItem("localspec.open", conversation.id);
  const body = requestOf(conversation.settings, path, $("model").value);
  banner("");
  conversation.updated = Date.now();
  const message = continued ?? {};
  if (!hasCome(message))
    Object.assign(message, {
      role: "assistant",
      content: "",
      thoughts: "",
      calls: [],
      tokens: [],
      model: $("model").value,
    });
  message.state = "partial";
  delete message.error;
  delete message.tooLong;
  delete message.stats; // those of an answer that is continued
  if (!continued) add(message, path);
  const run = {
    conversation,
    message,
    abort: new AbortController(),
    savedMs: performance.now(),
    drawMs: 0,
    isDrawPlanned: false,
    pace: new Pace(),
  };
  running.set(conversation.id, run);
  drawState();
  progressOf(run, "Waiting for the model.");
  say("The answer has started.");
  noteEdition(message);
  const isStored = await saveSent(conversation, sent);
  try {
    await ask(body, run.abort.signal, (event) => takeEvent(run, event));
    if (message.state === "partial") message.state = "done";
  } catch (error) {
    if (error.name === "AbortError") message.state = "stopped";
    else Object.assign(message, { state: "error", error: error.message });
    if (error instanceof ApiError && error.status === 401) run.needsKey = true;
    if (error.code === "context_length_exceeded") message.tooLong = body.model;
    if (error.status === 413) {
      message.tooLong = true;
      message.error +=
        " Pictures and files of a conversation are sent with each question: start a new chat, or edit a question and leave some out.";
    }
    if (error instanceof ApiError && error.status === 0) waitForServer();
  }
  message.speeds = run.pace.speeds;
  noteTime(message, message.stats?.timings ?? run.pace.timings);
  noteEdition(message);
  await saveSent(conversation, isStored ? null : sent);
  return run;
}

// Does what follows an answer, once other tabs may answer in its conversation again: shows that it
// is complete, makes the calls in it, and asks for a key if it is missing.
async function end(run) {
  const { conversation, message } = run;
  running.delete(conversation.id);
  if (conversation === state.open) {
    views.get(message)?.update(true);
    drawState();
    follow();
  }
  say(
    message.error
      ? `The answer failed: ${message.error}`
      : `The answer is complete: ${counted(message.content.match(/\S+/g)?.length ?? 0, "word")}.`,
  );
  await noteMemory();
  if (message.state === "done" && conversation === state.open) await makeAllowed(conversation, message);
  if (run.needsKey && (await askKey()) && conversation === state.open && !hasCome(message)) await retry(message);
}

// Notes that a message has changed: of its copies in several tabs, the latest edition is kept.
function noteEdition(message) {
  message.edition = (message.edition ?? 0) + 1;
}

// Stores an answer that is still coming.
export async function keepRun({ conversation, message }) {
  noteEdition(message);
  await store.put(conversation);
}

const hasCome = ({ content, calls }) => content || calls?.length;

// Adds the tokens and the time of a run to those of its answer, which it may have continued.
function noteTime(message, { predicted_n: num, predicted_ms: ms }) {
  const { num: before = 0, ms: msBefore = 0 } = message.took ?? {};
  message.took = { num: before + num, ms: msBefore + ms };
}

// Adds an event of the stream to the answer, and shows it soon.
function takeEvent(run, event) {
  const { message } = run;
  if (event.queue_position !== undefined) {
    const position = event.queue_position;
    progressOf(run, position ? `Waiting in line for the model: number ${position}.` : "The model is working.");
  }
  if (event.prompt_progress) {
    const { processed, total } = event.prompt_progress;
    progressOf(run, `Reading the prompt: ${processed} of ${counted(total, "token")}.`, processed / total);
  }
  const [choice] = event.choices ?? [];
  if (choice) takeChoice(run, choice);
  for (const name of ["timings", "explanation", "usage"]) {
    if (event[name]) message.stats = { ...message.stats, [name]: event[name] };
  }
  if (!run.isDrawPlanned) {
    run.isDrawPlanned = true;
    // At most a fifth of the time goes to drawing, however long the answer is.
    setTimeout(() => requestAnimationFrame(() => drawRun(run)), 4 * run.drawMs);
  }
}

// Shows the progress of a run, if its conversation is open.
function progressOf(run, words, share = null) {
  if (run.conversation === state.open) showProgress(words, share);
}

// Adds the choice in an event to the answer.
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
  const [token] = logprobs?.content ?? [];
  const others = token?.top_logprobs.map((other) => [other.token, other.logprob]) ?? [];
  message.tokens.push([
    token?.token ?? delta.content ?? delta.reasoning_content ?? "",
    provenance,
    token?.logprob ?? null,
    others,
  ]);
  if (run.pace.token() && run.conversation === state.open) live.draw(message, run.pace);
}

// Draws the answer of a run as it is now, and stores it now and then.
function drawRun(run) {
  const startMs = performance.now();
  run.isDrawPlanned = false;
  if (!running.has(run.conversation.id)) return;
  if (run.conversation === state.open) {
    views.get(run.message)?.update(false);
    if (run.message.calls.length) views.get(run.message)?.drawFooter();
    follow();
  }
  run.drawMs = performance.now() - startMs;
  if (startMs - run.savedMs > SAVE_MS) {
    run.savedMs = startMs;
    keepRun(run).catch(() => {});
  }
}

const goOn = (continued) => answerAlone(() => ({ continued }));

// Has another version of an answer made; an answer that is empty is made again in its place.
const retry = (message) =>
  answerAlone(() => {
    const path = pathBefore(message);
    return hasCome(message) ? { path } : { path, continued: message };
  });

// Edits a question: what is typed becomes another version of it. Without a message, editing ends,
// and what is typed is the next question again. Both have a draft of their own.
export async function edit(message) {
  const { open } = state;
  if (running.has(open.id) || isElsewhere()) return;
  open.editing = message && open.messages.indexOf(message);
  const isNew = message && localStorage.getItem(draftName()) === null;
  if (isNew) localStorage.setItem(draftName(), message.content);
  useDraft();
  $("question").focus();
  if (isNew) await setAttached(message.files ?? []);
  await save(open);
}

// Shows another version of a message.
// name: the label of the arrow that was clicked, which gets the focus again.
async function toVersion(message, name) {
  turnTo(state.open, message);
  draw();
  const { footer, versions } = views.get(message);
  footer.querySelector(`[aria-label="${name}"]`).focus();
  say(`Version ${versions.indexOf(message) + 1} of ${versions.length}.`);
  if (!isElsewhere()) await save(state.open); // or the tab that answers would turn to it, too
}

// Shows a form in which the user enters the results of the calls in an answer.
function result(message) {
  const fields = message.calls.map(({ name }) =>
    element("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: `What ${name} returns` }),
  );
  const sendResults = () =>
    answerAlone(() => {
      form.remove();
      message.calls.forEach((call, at) =>
        add({ role: "tool", content: fields[at].value, callId: call.id }, pathBefore()),
      );
      return {};
    });
  const form = element("div", { class: "results" }, ...fields, button("Send", sendResults, { class: "primary" }));
  views.get(message).root.append(form); // not in the footer, which is drawn again
  fields[0].focus();
}

// ---- Calls of MCP servers' tools

// Makes the calls in an answer that may be made without asking the user.
async function makeAllowed(conversation, message) {
  for (const call of message.calls) {
    const tool = toolOf(call.name);
    if (tool && call.result === undefined && mayCall(conversation, tool)) await makeCall(conversation, message, call);
  }
  if (message.calls.some(({ result }) => result !== undefined)) {
    noteEdition(message);
    await save(conversation);
  }
  await answerResults(conversation, message);
}

// Makes a call, or refuses it, as the user has decided.
// choice: "once", "chat", "always" or "no".
async function decide(message, call, choice) {
  const { open } = state;
  const tool = toolOf(call.name);
  if (!tool || running.has(open.id) || isElsewhere()) return;
  if (choice === "chat" || choice === "always") allow(open, tool, choice);
  if (choice === "no") call.result = "[The user has refused this call.]";
  else await makeCall(open, message, call, choice === "always" ? "always" : "once");
  noteEdition(message);
  await save(open);
  views.get(message)?.drawFooter();
  await answerResults(open, message);
}

// Makes a call of a tool, and notes its result in the call.
// approved: "once" or "always", as the user has approved the call or the tool.
async function makeCall(conversation, message, call, approved = "once") {
  const run = { conversation, message, abort: new AbortController(), pace: new Pace() };
  running.set(conversation.id, run);
  drawState();
  progressOf(run, `Calling ${call.name}.`);
  try {
    const body = { name: call.name, arguments: call.json, approved, model: $("model").value };
    const { text, note, pictures } = await callTool(body, run.abort.signal);
    call.result = pictures.every(isImage) ? text : `${text}\n[An image was here, which cannot be shown.]`.trim();
    call.files = pictures.filter(isImage).map((image, at) => ({ name: `Image ${at + 1} of ${call.name}`, image }));
    if (note) banner(note);
  } catch (error) {
    call.result = error.name === "AbortError" ? "[The call was interrupted.]" : `Error: ${error.message}`;
  } finally {
    running.delete(conversation.id);
    progressOf(run, "");
    drawState();
  }
}

// Has the model answer the results of the calls in an answer, once all calls have one.
async function answerResults(conversation, message) {
  const { calls } = message;
  if (conversation !== state.open || !calls.length || calls.some(({ result }) => result === undefined)) return;
  const path = shown(conversation);
  if (path.at(-1) !== message) return;
  const sinceQuestion = path.slice(path.findLastIndex(({ role }) => role === "user"));
  if (sinceQuestion.filter(({ role }) => role === "tool").length >= MOST_CALLS) {
    banner(`${MOST_CALLS} calls were made for this question. Ask again to go on.`);
    return;
  }
  await answerAlone(() => {
    for (const call of calls) {
      add({ role: "tool", content: call.result, callId: call.id, files: call.files ?? [] }, pathBefore());
      delete call.files; // they are in that message now
    }
    return {};
  });
}

// ---- Files

// Attaches files to the next question, after those that are being attached.
export function attach(files) {
  const { open } = state;
  state.attaching = state.attaching.then(() => attachTo(open, files));
}

async function attachTo(conversation, files) {
  for (const file of files) {
    try {
      if (isPicture(file)) await requireSight(file.name);
      const attachment = isPicture(file) ? await pictureOf(file) : { name: file.name, text: await textOf(file) };
      if (conversation !== state.open)
        throw new Error(`${file.name} is not attached: another conversation was opened meanwhile.`);
      banner("");
      await setAttached([...state.attached, attachment]);
    } catch (error) {
      banner(error.message);
    }
  }
}

// Throws an Error if the chosen model cannot read pictures.
async function requireSight(name) {
  const model = $("model").value;
  if (await sees(model)) return;
  throw new Error(
    `${model} cannot see images, so ${name} was not attached. Choose a model that can, or start the server with its projector (--mmproj).`,
  );
}

Object.assign(actions, { edit, retry, goOn, result, decide, toVersion });
