// Conversations, stored in this browser alone (IndexedDB). Pictures are stored apart from the
// texts, each once, so that saving a growing answer rewrites no picture. Several tabs may write
// the same conversation: each merges its own copy with the stored one.

import { adopt, fieldsOf, merged, withIds } from "./merging.js";

const TEXTS = "conversations"; // by id, without pictures
const PICTURES = "pictures"; // data URLs, by the keys that files of messages have
const ATTACHED = "attached"; // lists of files that are not sent yet
let opening; // a promise of the database
let callWhenUnblocked;

// callback: called when a tab with an older version of the page, which blocked the database, is
// closed.
export const onUnblocked = (callback) => (callWhenUnblocked = callback);

// A promise of the open database.
function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("localspec", 2);
    let wasBlocked = false;
    request.onupgradeneeded = ({ oldVersion }) => {
      if (!oldVersion) request.result.createObjectStore(TEXTS, { keyPath: "id" });
      request.result.createObjectStore(PICTURES);
      request.result.createObjectStore(ATTACHED);
    };
    request.onsuccess = () => {
      // Another tab has a newer version of the page, which this one must not block.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
      if (!wasBlocked) return;
      opening = Promise.resolve(request.result);
      callWhenUnblocked?.();
    };
    request.onerror = () => {
      opening = undefined; // so that the next call tries again
      reject(request.error);
    };
    request.onblocked = () => {
      wasBlocked = true;
      reject(new Error("an older version of this page is open in another tab; close that."));
    };
  });
  return opening;
}

// Runs a transaction. Returns the result of the request that `work` returns, if any.
// mode: "readonly" or "readwrite". work: gets a function from the name of a store to the store.
async function run(mode, work) {
  const transaction = (await database()).transaction([TEXTS, PICTURES, ATTACHED], mode);
  return new Promise((resolve, reject) => {
    const request = work((name) => transaction.objectStore(name));
    // Not at once: whether there is room for the data is only known at the end.
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error ?? request?.error);
  });
}

const otherTabs = new BroadcastChannel("localspec");
// callback: called when another tab has changed the database.
export const onOtherTab = (callback) => (otherTabs.onmessage = callback);

// Runs a transaction that changes the database, and lets the other tabs know.
async function change(work) {
  await run("readwrite", work);
  otherTabs.postMessage("changed");
}

// ---- Pictures

export const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

// Files as they are stored, with the keys of pictures in place of the pictures. Pictures that are
// not in their store yet are put there.
function storedFiles(files, store) {
  return files.map((file) => {
    if (!file.image) return file;
    file.key ??= newId();
    const pictures = store(PICTURES);
    pictures.getKey(file.key).onsuccess = ({ target }) => target.result ?? pictures.put(file.image, file.key);
    return { name: file.name, key: file.key };
  });
}

// Lists of stored files, with their pictures; a file whose picture is gone is left out. Files that
// an older version of the page stored have their pictures already.
async function withPictures(lists) {
  const keys = lists
    .flat()
    .filter(({ key, image }) => key && !image)
    .map(({ key }) => key);
  if (!keys.length) return lists;
  const pictures = new Map();
  await run("readonly", (store) => {
    for (const key of keys)
      store(PICTURES).get(key).onsuccess = ({ target }) => target.result && pictures.set(key, target.result);
  });
  const filled = (file) => (pictures.has(file.key) ? { ...file, image: pictures.get(file.key) } : file);
  return lists.map((files) => files.map(filled).filter(({ image, text }) => image || text !== undefined));
}

// A conversation from its stored record, with its pictures.
// ownCopy: this tab's copy of it, whose pictures need not be read again; null if it has none.
async function fromRecord(record, ownCopy = null) {
  const { messages: stored, ...fields } = withIds(record);
  const ownFiles = new Map(ownCopy?.messages.map(({ id, files }) => [id, files]));
  const lists = await withPictures(stored.map(({ id, files }) => ownFiles.get(id) ?? files ?? []));
  const messages = stored.map((message, at) => (message.files ? { ...message, files: lists[at] } : message));
  // An older version of the page stored no end, when a conversation had no versions.
  return { ...fields, messages, end: record.end ?? messages.length - 1 };
}

// Deletes the files that were attached to questions of deleted conversations, and the pictures
// that no message and no list of files has. It relies on requests being answered in their order.
export const sweep = () =>
  run("readwrite", (store) => {
    const drafts = new Set([nameOfDraft()]); // the names of all drafts
    const usedKeys = new Set();
    const note = (files) => files?.forEach(({ key }) => usedKeys.add(key));
    store(TEXTS).getAll().onsuccess = ({ target }) =>
      target.result.forEach(({ id, messages }) => {
        drafts.add(nameOfDraft(id));
        messages.forEach(({ files }) => note(files));
      });
    const attached = store(ATTACHED);
    const keys = attached.getAllKeys();
    attached.getAll().onsuccess = ({ target }) =>
      target.result.forEach((files, at) =>
        drafts.has(keys.result[at].split("#")[0]) ? note(files) : attached.delete(keys.result[at]),
      );
    const pictures = store(PICTURES);
    pictures.getAllKeys().onsuccess = ({ target }) =>
      target.result.filter((key) => !usedKeys.has(key)).forEach((key) => pictures.delete(key));
  });

// ---- Conversations

// The records of all conversations, without their pictures.
export const texts = () => run("readonly", (store) => store(TEXTS).getAll());
// All conversations, with their pictures.
export const all = async () => Promise.all((await texts()).map((record) => fromRecord(record)));

// A conversation → its fields when it was last equal to its record.
const common = new WeakMap();
const getRecord = (id) => run("readonly", (store) => store(TEXTS).get(id));

// A stored conversation; undefined if there is none with the id.
export async function get(id) {
  const record = await getRecord(id);
  if (!record) return undefined;
  const conversation = await fromRecord(record);
  common.set(conversation, fieldsOf(conversation));
  return conversation;
}

const deleted = new Set(); // ids of deleted conversations: a running answer must not store them again
let numPuts = 0;

// Stores a conversation, merged with its record. Throws an Error if another tab has deleted it.
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
        message.files ? { ...message, files: storedFiles(message.files, store) } : message,
      );
      store(TEXTS).put(record);
    };
  });
  if (isGone) throw new Error("it was deleted in another tab.");
  common.set(conversation, fields);
  numPuts += 1;
}

// Merges what other tabs have stored of a conversation into this tab's copy. Returns the messages
// that are new or have changed; null if another tab has deleted the conversation.
export async function takeOver(conversation) {
  const { id } = conversation;
  for (;;) {
    if (!common.has(conversation) || deleted.has(id)) return []; // it is not stored
    const numPutsBefore = numPuts;
    const record = await getRecord(id);
    if (!record && !deleted.has(id)) {
      deleted.add(id);
      return null;
    }
    const stored = record && (await fromRecord(record, conversation));
    if (numPutsBefore !== numPuts || !stored) continue; // this tab has stored something since
    const changed = adopt(conversation, merged(conversation, stored, common.get(conversation)));
    common.set(conversation, fieldsOf(stored));
    return changed;
  }
}

// Deletes conversations by a transaction, and lets no running answer store them again.
async function drop(ids, work) {
  ids.forEach((id) => deleted.add(id));
  try {
    await change(work);
  } catch (error) {
    ids.forEach((id) => deleted.delete(id)); // the transaction has failed
    throw error;
  }
}

export const remove = (id) => drop([id], (store) => store(TEXTS).delete(id)).then(sweep);
// Deletes everything.
// ids: those of the conversations that are open or being answered.
export const clear = (ids) => drop(ids, (store) => [TEXTS, PICTURES, ATTACHED].forEach((name) => store(name).clear()));

// ---- Drafts: the text and the files of a question that is not sent yet

const DRAFT = "localspec.draft.";
// The name under which a draft is stored.
// id: the conversation's; editing: the index of the message that is edited, if one is.
export const nameOfDraft = (id = "new", editing = undefined) =>
  DRAFT + id + (editing === undefined ? "" : `#${editing}`);

// Deletes the texts of the drafts whose names start with a prefix.
export const forgetTyped = (prefix = DRAFT) =>
  Object.keys(localStorage)
    .filter((name) => name.startsWith(prefix))
    .forEach((name) => localStorage.removeItem(name));

// Whether two files are the same: pictures are compared by their keys, texts as they are.
export const isSame = (file, other) =>
  file.key === other.key && (file.key !== undefined || (file.name === other.name && file.text === other.text));

export const putAttached = (name, files) =>
  run("readwrite", (store) =>
    files.length ? store(ATTACHED).put(storedFiles(files, store), name) : store(ATTACHED).delete(name),
  );

// Removes files from a draft, and leaves those that were attached since.
export const removeAttached = (name, files) =>
  run("readwrite", (store) => {
    const attached = store(ATTACHED);
    attached.get(name).onsuccess = ({ target }) => {
      const remaining = (target.result ?? []).filter((stored) => !files.some((file) => isSame(stored, file)));
      if (remaining.length) attached.put(remaining, name);
      else attached.delete(name);
    };
  });

export async function getAttached(name) {
  const files = await run("readonly", (store) => store(ATTACHED).get(name));
  return files ? (await withPictures([files]))[0] : [];
}

const NEW = "localspec.new";

// The settings that a new chat can begin with: all but the model and those that are empty.
const reusable = ({ model: _model, ...settings }) =>
  Object.fromEntries(
    Object.entries(settings)
      .filter(([, value]) => value)
      .sort(),
  );
export const settingsOfNew = {
  keep: (settings) => localStorage.setItem(NEW, JSON.stringify(reusable(settings))),
  get: () => JSON.parse(localStorage.getItem(NEW) ?? "{}"),
  are: (settings) => JSON.stringify(reusable(settings)) === JSON.stringify(settingsOfNew.get()),
};

const UNSENT = "localspec.unsent";

// Keeps the settings of a chat without questions over a reload of its tab.
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

// Whether each of the words occurs somewhere in a conversation.
export function matches(conversation, words) {
  const text = [conversation.title, ...conversation.messages.map((message) => message.content)]
    .join("\n")
    .toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
