// Conversations, kept in this browser alone (IndexedDB).

const STORE = "conversations";
let opening;

function database() {
  opening ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open("localspec", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opening;
}

async function run(mode, work) {
  const transaction = (await database()).transaction(STORE, mode);
  return new Promise((resolve, reject) => {
    const asked = work(transaction.objectStore(STORE));
    // Only then it is kept: a lack of room shows at the end.
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onabort = () => reject(transaction.error ?? asked.error);
  });
}

const others = new BroadcastChannel("localspec");

export const all = () => run("readonly", (store) => store.getAll());
export const get = (id) => run("readonly", (store) => store.get(id));
export const onOtherTab = (call) => (others.onmessage = call);

async function change(work) {
  await run("readwrite", work);
  others.postMessage("changed");
}

export const put = (conversation) => change((store) => store.put(conversation));
export const remove = (id) => change((store) => store.delete(id));
export const clear = () => change((store) => store.clear());

export function newConversation() {
  const now = Date.now();
  return {
    id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`,
    title: "",
    created: now,
    updated: now,
    settings: {},
    messages: [],
  };
}

// Whether the words occur anywhere in the conversation.
export function matches(conversation, words) {
  const text = [conversation.title, ...conversation.messages.map((each) => each.content)].join("\n").toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
