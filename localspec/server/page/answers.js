// Questions, their answers, and what is attached to them.

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

const SAVE_MS = 500; // between two savings of an answer that is coming
const MOST_CALLS = 20; // of MCP servers' tools behind a question

export async function send() {
  const { open } = state;
  await state.attaching;
  if (open !== state.open || !($("question").value.trim() || state.attached.length)) return;
  await answerAlone(() => {
    const text = $("question").value.trim();
    const files = state.attached;
    const sent = { name: draftName(), text, files };
    const path = before(open.messages[open.editing]);
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

// Answers in the open conversation, unless it is being answered, here or in another tab.
// prepare: makes what `answer` takes, when nothing is against one.
async function answerAlone(prepare) {
  const { open } = state;
  if (running.has(open.id)) return;
  let run = null;
  let isAlone = false;
  state.begins = true;
  drawState();
  try {
    isAlone = await alone(open.id, async () => {
      await takeOver(open); // what another tab has just asked
      const what = open === state.open && areRight(open) && prepare();
      state.begins = false;
      if (what) run = await answer(what);
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

// What leads to a message; without one, all that is shown.
function before(message) {
  const { open } = state;
  return message ? shown({ ...open, end: placeBefore(open, open.messages.indexOf(message)) }) : shown(open);
}

// Returns whether it is kept. sent: what was typed and attached for it, which is forgotten then.
async function keep(conversation, sent) {
  const isKept = await save(conversation);
  if (isKept && sent) await forget(sent.name, sent);
  return isKept;
}

// path: what is answered. continued: the answer to go on with. sent: as above. Returns the run,
// whose answer is whole and kept.
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
  delete message.stats; // of what is there already
  if (!continued) add(message, path);
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
  say("The answer has started.");
  noteEdition(message);
  const isKept = await keep(conversation, sent);
  try {
    await ask(body, run.abort.signal, (event) => take(run, event));
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
  await keep(conversation, isKept ? null : sent);
  return run;
}

// What follows a whole answer, when other tabs may answer in its conversation again.
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

// Of the copies of a message in several tabs the latest counts.
function noteEdition(message) {
  message.edition = (message.edition ?? 0) + 1;
}

export async function keepRun({ conversation, message }) {
  noteEdition(message);
  await store.put(conversation);
}

const hasCome = ({ content, calls }) => content || calls?.length;

// An answer that was gone on with took what all its parts took.
function noteTime(message, { predicted_n: num, predicted_ms: ms }) {
  const { num: before = 0, ms: msBefore = 0 } = message.took ?? {};
  message.took = { num: before + num, ms: msBefore + ms };
}

// One event of the stream.
function take(run, event) {
  const { message } = run;
  if (event.queue_position !== undefined) {
    const place = event.queue_position;
    progressOf(run, place ? `Waiting in line for the model: number ${place}.` : "The model is working.");
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
  if (!run.waits) {
    run.waits = true;
    // At most a fifth of the time goes to drawing, however long the answer is.
    setTimeout(() => requestAnimationFrame(() => drawRun(run)), 4 * run.drawMs);
  }
}

function progressOf(run, words, share = null) {
  if (run.conversation === state.open) showProgress(words, share);
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
  if (run.pace.token() && run.conversation === state.open) live.draw(message, run.pace);
}

function drawRun(run) {
  const began = performance.now();
  run.waits = false;
  if (!running.has(run.conversation.id)) return;
  if (run.conversation === state.open) {
    views.get(run.message)?.update(false);
    if (run.message.calls.length) views.get(run.message)?.drawRest();
    follow();
  }
  run.drawMs = performance.now() - began;
  if (began - run.savedMs > SAVE_MS) {
    run.savedMs = began;
    keepRun(run).catch(() => {});
  }
}

const goOn = (continued) => answerAlone(() => ({ continued }));

// Another version of an answer; one of which nothing came is asked for again.
const retry = (message) =>
  answerAlone(() => {
    const path = before(message);
    return hasCome(message) ? { path } : { path, continued: message };
  });

// Have what is typed be another version of a question; without one, the next question again.
// What was typed for either stays until it is sent.
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

async function toVersion(message, name) {
  turnTo(state.open, message);
  draw();
  const { rest, versions } = views.get(message);
  rest.querySelector(`[aria-label="${name}"]`).focus();
  say(`Version ${versions.indexOf(message) + 1} of ${versions.length}.`);
  if (!isElsewhere()) await save(state.open); // or the tab that answers would turn to it, too
}

// A form for what the called tools returned.
function result(message) {
  const fields = message.calls.map(({ name }) =>
    element("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: `What ${name} returns` }),
  );
  const sendResults = () =>
    answerAlone(() => {
      form.remove();
      message.calls.forEach((call, at) => add({ role: "tool", content: fields[at].value, callId: call.id }, before()));
      return {};
    });
  const form = element("div", { class: "results" }, ...fields, button("Send", sendResults, { class: "primary" }));
  views.get(message).root.append(form); // not among what is drawn again
  fields[0].focus();
}

// ---- Calls of MCP servers' tools

// Makes the calls in an answer that need no question.
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

// choice: once, chat, always or no.
async function decide(message, call, choice) {
  const { open } = state;
  const tool = toolOf(call.name);
  if (!tool || running.has(open.id) || isElsewhere()) return;
  if (choice === "chat" || choice === "always") allow(open, tool, choice);
  if (choice === "no") call.result = "[The user has refused this call.]";
  else await makeCall(open, message, call, choice === "always" ? "always" : "once");
  noteEdition(message);
  await save(open);
  views.get(message)?.drawRest();
  await answerResults(open, message);
}

// approved: as a person has answered; without it the tool is allowed already.
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

// Goes on once each call has a result.
async function answerResults(conversation, message) {
  const { calls } = message;
  if (conversation !== state.open || !calls.length || calls.some(({ result }) => result === undefined)) return;
  const path = shown(conversation);
  if (path.at(-1) !== message) return;
  const since = path.slice(path.findLastIndex(({ role }) => role === "user"));
  if (since.filter(({ role }) => role === "tool").length >= MOST_CALLS) {
    banner(`${MOST_CALLS} calls were made for this question. Ask again to go on.`);
    return;
  }
  await answerAlone(() => {
    for (const call of calls) {
      add({ role: "tool", content: call.result, callId: call.id, files: call.files ?? [] }, before());
      delete call.files; // they are in that message now
    }
    return {};
  });
}

// ---- Files

export function attach(files) {
  const to = state.open;
  state.attaching = state.attaching.then(() => attachTo(to, files));
}

async function attachTo(conversation, files) {
  for (const file of files) {
    try {
      if (isPicture(file)) await requireSight(file.name);
      const read = isPicture(file) ? await pictureOf(file) : { name: file.name, text: await textOf(file) };
      if (conversation !== state.open)
        throw new Error(`${file.name} is not attached: another conversation was opened meanwhile.`);
      banner("");
      await setAttached([...state.attached, read]);
    } catch (error) {
      banner(error.message);
    }
  }
}

async function requireSight(name) {
  const model = $("model").value;
  if (await sees(model)) return;
  throw new Error(
    `${model} cannot see images, so ${name} was not attached. Choose a model that can, or start the server with its projector (--mmproj).`,
  );
}

Object.assign(actions, { edit, retry, goOn, result, decide, toVersion });
