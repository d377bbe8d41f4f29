// Conversations, kept in this browser alone (IndexedDB): their texts, and apart from them the
// pictures, each once, so that an answer that is coming rewrites no picture. Several tabs may
// write the same conversation: each merges what the others have kept of it.

import { fieldsOf, merged, take, withIds } from "./merging.js";

const TEXTS = "conversations"; // by id, without pictures
const PICTURES = "pictures"; // data URLs, by the keys that files of messages have
const ATTACHED = "attached"; // lists of files that are not sent yet
let opening;
let free;

// call: made when a page of an older version, which was in the way, has been closed.
export const onFree = (call) => (free = call);

function database() {
  opening ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open("localspec", 2);
    let wasBlocked = false;
    asked.onupgradeneeded = ({ oldVersion }) => {
      if (!oldVersion) asked.result.createObjectStore(TEXTS, { keyPath: "id" });
      asked.result.createObjectStore(PICTURES);
      asked.result.createObjectStore(ATTACHED);
    };
    asked.onsuccess = () => {
      asked.result.onversionchange = () => asked.result.close(); // a newer page in another tab
      resolve(asked.result);
      if (!wasBlocked) return;
      opening = Promise.resolve(asked.result);
      free?.();
    };
    asked.onerror = () => {
      opening = undefined; // the next who asks may have more luck
      reject(asked.error);
    };
    asked.onblocked = () => {
      wasBlocked = true;
      reject(new Error("an older version of this page is open in another tab; close that."));
    };
  });
  return opening;
}

// work: gets a function that gives a store; what it returns is asked for its result.
async function run(mode, work) {
  const transaction = (await database()).transaction([TEXTS, PICTURES, ATTACHED], mode);
  return new Promise((resolve, reject) => {
    const asked = work((name) => transaction.objectStore(name));
    // Only then it is kept: a lack of room shows at the end.
    transaction.oncomplete = () => resolve(asked?.result);
    transaction.onabort = () => reject(transaction.error ?? asked?.error);
  });
}

const others = new BroadcastChannel("localspec");
export const onOtherTab = (call) => (others.onmessage = call);

async function change(work) {
  await run("readwrite", work);
  others.postMessage("changed");
}

// ---- Pictures

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

// Files as they are kept: pictures by their keys. Those that are not there yet are put there.
function kept(files, store) {
  return files.map((file) => {
    if (!file.image) return file;
    file.key ??= newId();
    const pictures = store(PICTURES);
    pictures.getKey(file.key).onsuccess = ({ target }) => target.result ?? pictures.put(file.image, file.key);
    return { name: file.name, key: file.key };
  });
}

// Lists of files as they were. Those of a version before have their pictures in them.
async function whole(lists) {
  const keys = lists.flat().flatMap(({ key, image }) => (key && !image ? [key] : []));
  if (!keys.length) return lists;
  const found = new Map();
  await run("readonly", (store) => {
    for (const key of keys)
      store(PICTURES).get(key).onsuccess = ({ target }) => target.result && found.set(key, target.result);
  });
  const filled = (file) => (found.has(file.key) ? { ...file, image: found.get(file.key) } : file);
  return lists.map((files) => files.map(filled).filter(({ image, text }) => image || text !== undefined));
}

// own: the copy that this tab has already, whose pictures need not be read again.
async function wholeConversation(told, own = null) {
  const { messages: texts, ...rest } = withIds(told);
  const here = new Map(own?.messages.map(({ id, files }) => [id, files]));
  const lists = await whole(texts.map(({ id, files }) => here.get(id) ?? files ?? []));
  const messages = texts.map((message, at) => (message.files ? { ...message, files: lists[at] } : message));
  return { ...rest, messages, end: told.end ?? messages.length - 1 }; // without, none has versions
}

// Lets go what was attached to questions of conversations that are gone, and pictures that nothing has any more. Requests answer in their order.
export const sweep = () =>
  run("readwrite", (store) => {
    const names = new Set([nameOfDraft()]);
    const used = new Set();
    const note = (files) => files?.forEach(({ key }) => used.add(key));
    store(TEXTS).getAll().onsuccess = ({ target }) =>
      target.result.forEach(({ id, messages }) => {
        names.add(nameOfDraft(id));
        messages.forEach(({ files }) => note(files));
      });
    const attached = store(ATTACHED);
    const keys = attached.getAllKeys();
    attached.getAll().onsuccess = ({ target }) =>
      target.result.forEach((files, at) =>
        names.has(keys.result[at].split("#")[0]) ? note(files) : attached.delete(keys.result[at]),
      );
    const pictures = store(PICTURES);
    pictures.getAllKeys().onsuccess = ({ target }) =>
      target.result.filter((key) => !used.has(key)).forEach((key) => pictures.delete(key));
  });

// ---- Conversations

// All, without their pictures.
export const texts = () => run("readonly", (store) => store(TEXTS).getAll());
export const all = async () => Promise.all((await texts()).map((told) => wholeConversation(told)));

const common = new WeakMap(); // conversation → the fields that it and the store had in common last
const textOf = (id) => run("readonly", (store) => store(TEXTS).get(id));

export async function get(id) {
  const told = await textOf(id);
  if (!told) return undefined;
  const conversation = await wholeConversation(told);
  common.set(conversation, fieldsOf(conversation));
  return conversation;
}

const deleted = new Set(); // ids that no answer which was still coming brings back
let numPuts = 0;

// Raises Error where another tab has deleted the conversation.
export async function put(conversation) {
  if (deleted.has(conversation.id)) return;
  let isGone = false;
  let fields;
  await change((store) => {
    store(TEXTS).get(conversation.id).onsuccess = ({ target }) => {
      const before = common.get(conversation);
      isGone = Boolean(before) && !target.result;
      if (isGone) return;
      fields = fieldsOf(conversation);
      const record = target.result ? merged(conversation, withIds(target.result), before) : { ...conversation };
      record.messages = record.messages.map((message) =>
        message.files ? { ...message, files: kept(message.files, store) } : message,
      );
      store(TEXTS).put(record);
    };
  });
  if (isGone) throw new Error("it was deleted in another tab.");
  common.set(conversation, fields);
  numPuts += 1;
}

// Lets a conversation have what other tabs have kept of it. Returns its messages that are new or
// have changed; null where another tab has deleted it.
export async function takeOver(conversation) {
  const { id } = conversation;
  for (;;) {
    if (!common.has(conversation) || deleted.has(id)) return []; // the store has nothing of it
    const numBefore = numPuts;
    const told = await textOf(id);
    if (!told && !deleted.has(id)) {
      deleted.add(id);
      return null;
    }
    const found = told && (await wholeConversation(told, conversation));
    if (numBefore !== numPuts || !found) continue; // what was read is older than what was written
    const changed = take(conversation, merged(conversation, found, common.get(conversation)));
    common.set(conversation, fieldsOf(found));
    return changed;
  }
}

async function drop(ids, work) {
  ids.forEach((id) => deleted.add(id));
  try {
    await change(work);
  } catch (error) {
    ids.forEach((id) => deleted.delete(id)); // they are still there
    throw error;
  }
}

export const remove = (id) => drop([id], (store) => store(TEXTS).delete(id)).then(sweep);
// ids: of conversations that are open or being answered.
export const clear = (ids) => drop(ids, (store) => [TEXTS, PICTURES, ATTACHED].forEach((name) => store(name).clear()));

// ---- What is attached to a question, by a name for that

const DRAFT = "localspec.draft.";
// editing: the place of the message that is edited.
export const nameOfDraft = (id = "new", editing = undefined) =>
  DRAFT + id + (editing === undefined ? "" : `#${editing}`);

export const forgetTyped = (start = DRAFT) =>
  Object.keys(localStorage)
    .filter((name) => name.startsWith(start))
    .forEach((name) => localStorage.removeItem(name));

// Whether they are the same file of a list: pictures have keys.
export const isSame = (one, other) =>
  one.key === other.key && (one.key !== undefined || (one.name === other.name && one.text === other.text));

export const putAttached = (name, files) =>
  run("readwrite", (store) =>
    files.length ? store(ATTACHED).put(kept(files, store), name) : store(ATTACHED).delete(name),
  );

// Leaves what was attached since.
export const removeAttached = (name, files) =>
  run("readwrite", (store) => {
    const attached = store(ATTACHED);
    attached.get(name).onsuccess = ({ target }) => {
      const left = (target.result ?? []).filter((one) => !files.some((file) => isSame(one, file)));
      if (left.length) attached.put(left, name);
      else attached.delete(name);
    };
  });

export async function getAttached(name) {
  const files = await run("readonly", (store) => store(ATTACHED).get(name));
  return files ? (await whole([files]))[0] : [];
}

const NEW = "localspec.new";

// Settings that new chats begin with: all but the model and those that are empty.
const essence = ({ model: _model, ...settings }) =>
  Object.fromEntries(
    Object.entries(settings)
      .filter(([, value]) => value)
      .sort(),
  );
export const settingsOfNew = {
  keep: (settings) => localStorage.setItem(NEW, JSON.stringify(essence(settings))),
  get: () => JSON.parse(localStorage.getItem(NEW) ?? "{}"),
  are: (settings) => JSON.stringify(essence(settings)) === JSON.stringify(settingsOfNew.get()),
};

const UNSENT = "localspec.unsent";

// The settings of a chat in which nothing was asked yet outlive a reload of its tab.
export const unsent = {
  keep: ({ id, settings }) => sessionStorage.setItem(UNSENT, JSON.stringify({ id, settings })),
  get(id) {
    const kept = JSON.parse(sessionStorage.getItem(UNSENT) ?? "{}");
    return kept.id === id ? kept : {};
  },
};

export function newConversation() {
  const now = Date.now();
  const settings = settingsOfNew.get();
  return { id: newId(), title: "", created: now, updated: now, settings, messages: [], end: -1 };
}

// Whether the words occur anywhere in the conversation.
export function matches(conversation, words) {
  const text = [conversation.title, ...conversation.messages.map((each) => each.content)].join("\n").toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
