// Conversations as files: JSON, which holds everything, and Markdown, which holds the texts.

import { isImage } from "./pictures.js";
import { placeBefore, shown } from "./versions.js";

const KIND = "localspec conversations";
const HEAD = /^<!-- localspec conversation (\{.*\}) -->$/m;

export const toJson = (conversations) => JSON.stringify({ kind: KIND, version: 1, conversations }, null, 1);

// Each message follows a comment with a word that is in none of the messages; those that are not
// shown come last, and say which they follow.
export function toMarkdown(conversation) {
  const texts = conversation.messages.map((each) => each.content).join("\n");
  let mark = "message";
  while (texts.includes(`<!-- ${mark}`)) mark += "-";
  const path = shown(conversation);
  const { title, messages, settings } = conversation;
  const head = JSON.stringify({ title, mark, system: settings.system ?? "", end: path.length - 1 });
  const order = [...path, ...messages.filter((each) => !path.includes(each))];
  const parts = order.map((each, at) => {
    const before = order.indexOf(messages[placeBefore(conversation, messages.indexOf(each))]);
    return `<!-- ${mark} ${each.role}${before === at - 1 ? "" : ` after ${before}`} -->\n${each.content}\n\n`;
  });
  return `<!-- localspec conversation ${head.replaceAll("--", "\\u002d-")} -->\n# ${title}\n\n${parts.join("")}`;
}

// The conversations of a file, checked. Raises Error with what is wrong.
export function fromFile(name, text) {
  const found = HEAD.exec(text) ? [fromMarkdown(text)] : fromJson(name, text);
  return found.map(checked);
}

function fromJson(name, text) {
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    throw new Error(`${name} is neither JSON nor a Markdown file that was exported here.`);
  }
  if (told?.kind !== KIND || !Array.isArray(told.conversations))
    throw new Error(`${name} holds no conversations of this page.`);
  return told.conversations;
}

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
const areAll = (list, is) => list === undefined || (Array.isArray(list) && list.every(is));

// A message as this page writes one: of another the page could not draw the rest.
function isMessage(told, at) {
  return (
    isPlace(told?.after ?? at - 1, -1, at) &&
    ["user", "assistant", "tool"].includes(told?.role) &&
    typeof told.content === "string" &&
    ["thoughts", "model", "state", "error", "callId"].every((name) => isText(told[name])) &&
    areAll(
      told.files,
      (file) =>
        typeof file?.name === "string" &&
        (file.image === undefined ? typeof file.text === "string" : isImage(file.image)),
    ) &&
    areAll(told.calls, (call) => typeof call?.name === "string" && typeof call.json === "string") &&
    areAll(
      told.tokens,
      (token) => Array.isArray(token) && typeof token[0] === "string" && areAll(token[3], Array.isArray),
    )
  );
}

function checked(told) {
  const end = told?.end ?? told?.messages?.length - 1;
  if (!Array.isArray(told?.messages) || !told.messages.every(isMessage) || !isPlace(end, -1, told.messages.length))
    throw new Error("A conversation in the file has messages in a format that this page does not write.");
  const settings = Object.entries(told.settings ?? {}).filter(([, value]) => typeof value === "string");
  // Messages get ids of this browser's, and pictures keys.
  const messages = told.messages.map(({ id: _id, edition: _edition, ...message }) =>
    message.files ? { ...message, files: message.files.map(({ key: _key, ...file }) => file) } : message,
  );
  const times = ["created", "updated"].filter((name) => Number.isFinite(told[name])).map((name) => [name, told[name]]);
  const title = String(told.title ?? "").slice(0, 200);
  return { ...Object.fromEntries(times), title, settings: Object.fromEntries(settings), messages, end };
}
