// Several tabs of one browser: which conversations another of them answers.

const NAME = "localspec.answering.";
const BEAT_MS = 1000;

// Where a browser has no locks, as at plain http addresses of other machines, a tab says again
// and again what it answers.
const channel = new BroadcastChannel("localspec.answering");
const heard = new Map(); // id → when another tab said last that it answers there

const held = new Set(); // ids that this tab answers, or is about to

let changed = () => {};
// call: made when another tab begins or ends.
export const onAnswering = (call) => (changed = call);

channel.onmessage = ({ data }) => {
  const { id, isAnswered } = data;
  if (isAnswered) heard.set(id, Date.now());
  else heard.delete(id);
  changed();
};

// The ids of the conversations that other tabs answer.
export async function answeredElsewhere() {
  const ids = new Set();
  if (navigator.locks) {
    const { held: locks } = await navigator.locks.query();
    for (const { name } of locks) if (name.startsWith(NAME)) ids.add(name.slice(NAME.length));
    for (const id of held) ids.delete(id);
  } else {
    for (const [id, heardMs] of heard) if (Date.now() - heardMs < 3 * BEAT_MS) ids.add(id);
  }
  return ids;
}

// Does work that answers in a conversation, while no other tab may. Returns whether it was done.
// A tab that does some there already does nothing.
export async function alone(id, work) {
  if (held.has(id)) return true;
  held.add(id);
  const tell = (isAnswered) => channel.postMessage({ id, isAnswered });
  const working = async () => {
    tell(true);
    const beat = navigator.locks ? undefined : setInterval(() => tell(true), BEAT_MS);
    try {
      await work();
    } finally {
      clearInterval(beat);
    }
    return true;
  };
  try {
    if (navigator.locks)
      return await navigator.locks.request(NAME + id, { ifAvailable: true }, (lock) => (lock ? working() : false));
    return (await answeredElsewhere()).has(id) ? false : await working();
  } finally {
    held.delete(id);
    tell(false);
  }
}
