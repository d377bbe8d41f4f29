// Writes conversations to files and reads them: JSON with everything, or Markdown with the texts.

import { isImage } from "./pictures.js";
import { placeBefore, shown } from "./versions.js";

const KIND = "localspec conversations";
const HEAD = /^<!-- localspec conversation (\{.*\}) -->$/m;

export const toJson = (conversations) => JSON.stringify({ kind: KIND, version: 1, conversations }, null, 1);

// A conversation in Markdown. A comment stands before each message, with a word that is in none of
// the messages. Messages that are not shown come last; their comments name the message before them.
export function toMarkdown(conversation) {
  const texts = conversation.messages.map(({ content }) => content).join("\n");
  let mark = "message";
  while (texts.includes(`<!-- ${mark}`)) mark += "-";
  const path = shown(conversation);
  const { title, messages, settings } = conversation;
  const head = JSON.stringify({ title, mark, system: settings.system ?? "", end: path.length - 1 });
  const order = [...path, ...messages.filter((message) => !path.includes(message))];
  const parts = order.map((message, at) => {
    const parent = messages[placeBefore(conversation, messages.indexOf(message))];
    const after = order.indexOf(parent);
    const suffix = after === at - 1 ? "" : ` after ${after}`;
    return `<!-- ${mark} ${message.role}${suffix} -->\n${message.content}\n\n`;
  });
  return `<!-- localspec conversation ${head.replaceAll("--", "\\u002d-")} -->\n# ${title}\n\n${parts.join("")}`;
}

// The conversations in a file, checked. Throws an Error with what is wrong.
export function fromFile(name, text) {
  const conversations = HEAD.exec(text) ? [fromMarkdown(text)] : fromJson(name, text);
  return conversations.map(checked);
}

// The conversations in a JSON file, not checked yet.
function fromJson(name, text) {
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error(`${name} is neither JSON nor a Markdown file that was exported here.`);
  }
  if (content?.kind !== KIND || !Array.isArray(content.conversations))
    throw new Error(`${name} holds no conversations of this page.`);
  return content.conversations;
}

// The conversation in a Markdown file, not checked yet.
function fromMarkdown(text) {
  const { title, mark, system, end } = JSON.parse(HEAD.exec(text)[1]);
  const roles = new RegExp(
    `^<!-- ${String(mark).replace(/[^a-z-]/g, "")} (user|assistant|tool)(?: after (-?\\d+))? -->\\n`,
    "gm",
  );
  const [, ...parts] = text.split(roles);
  const messages = [];
  for (let at = 0; at < parts.length; at += 3) {
    const [role, after, content] = parts.slice(at, at + 3);
    messages.push({ role, content: content.replace(/\n{1,2}$/, ""), ...(after && { after: Number(after) }) });
  }
  return { title, settings: { system }, messages, end };
}

const isPlace = (value, first, end) => Number.isInteger(value) && value >= first && value < end;
const isText = (value) => value === undefined || typeof value === "string";
// Whether a list is missing, or has only items for which `isRight` is true.
const areAll = (list, isRight) => list === undefined || (Array.isArray(list) && list.every(isRight));

// Whether a value is a message as this page writes them: it could not draw any other.
// at: the index of the message.
function isMessage(value, at) {
  return (
    isPlace(value?.after ?? at - 1, -1, at) &&
    ["user", "assistant", "tool"].includes(value?.role) &&
    typeof value.content === "string" &&
    ["thoughts", "model", "state", "error", "callId"].every((name) => isText(value[name])) &&
    areAll(
      value.files,
      (file) =>
        typeof file?.name === "string" &&
        (file.image === undefined ? typeof file.text === "string" : isImage(file.image)),
    ) &&
    areAll(value.calls, (call) => typeof call?.name === "string" && typeof call.json === "string") &&
    areAll(
      value.tokens,
      (token) => Array.isArray(token) && typeof token[0] === "string" && areAll(token[3], Array.isArray),
    )
  );
}

// A conversation with only the fields that can be imported. Throws an Error if it is malformed.
function checked(conversation) {
  const { messages: imported } = conversation ?? {};
  const end = conversation?.end ?? imported?.length - 1;
  if (!Array.isArray(imported) || !imported.every(isMessage) || !isPlace(end, -1, imported.length))
    throw new Error("A conversation in the file has messages in a format that this page does not write.");
  const settings = Object.entries(conversation.settings ?? {}).filter(([, value]) => typeof value === "string");
  // This browser gives the messages new ids, and the pictures new keys.
  const messages = imported.map(({ id: _id, edition: _edition, ...message }) =>
    message.files ? { ...message, files: message.files.map(({ key: _key, ...file }) => file) } : message,
  );
  const times = ["created", "updated"]
    .filter((name) => Number.isFinite(conversation[name]))
    .map((name) => [name, conversation[name]]);
  const title = String(conversation.title ?? "").slice(0, 200);
  return { ...Object.fromEntries(times), title, settings: Object.fromEntries(settings), messages, end };
}
