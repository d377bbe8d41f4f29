// Several tabs of one browser: only one of them may answer in a conversation at a time.

const LOCK_PREFIX = "localspec.answering."; // of the name of a conversation's lock
const BEAT_MS = 1000;

// Some browsers have no locks on plain http pages of other machines. Without locks a tab sends a
// message again and again while it answers.
const channel = new BroadcastChannel("localspec.answering");
const lastMessageMs = new Map(); // a conversation's id → when another tab sent that it answers

const ownIds = new Set(); // ids of the conversations that this tab answers, or is about to

let callOnChange = () => {};
// callback: called when another tab begins or ends an answer.
export const onAnswering = (callback) => (callOnChange = callback);

channel.onmessage = ({ data }) => {
  const { id, isAnswered } = data;
  if (isAnswered) lastMessageMs.set(id, Date.now());
  else lastMessageMs.delete(id);
  callOnChange();
};

// The ids of the conversations that other tabs answer.
export async function answeredElsewhere() {
  const ids = new Set();
  if (navigator.locks) {
    const { held } = await navigator.locks.query();
    for (const { name } of held) if (name.startsWith(LOCK_PREFIX)) ids.add(name.slice(LOCK_PREFIX.length));
    for (const id of ownIds) ids.delete(id);
  } else {
    for (const [id, sentMs] of lastMessageMs) if (Date.now() - sentMs < 3 * BEAT_MS) ids.add(id);
  }
  return ids;
}

// Runs work that answers in a conversation, if no other tab answers there. Returns false if one
// does. If this tab answers there already, it returns true and runs nothing.
export async function alone(id, work) {
  if (ownIds.has(id)) return true;
  ownIds.add(id);
  const send = (isAnswered) => channel.postMessage({ id, isAnswered });
  const runWork = async () => {
    send(true);
    const beat = navigator.locks ? undefined : setInterval(() => send(true), BEAT_MS);
    try {
      await work();
    } finally {
      clearInterval(beat);
    }
    return true;
  };
  const runIfLocked = (lock) => (lock ? runWork() : false);
  try {
    if (navigator.locks) return await navigator.locks.request(LOCK_PREFIX + id, { ifAvailable: true }, runIfLocked);
    return (await answeredElsewhere()).has(id) ? false : await runWork();
  } finally {
    ownIds.delete(id);
    send(false);
  }
}
