// Makes the request for the next answer from settings and messages.

import { declared, hasTools } from "./mcp.js";
import { contentOf } from "./pictures.js";

// A setting is wrong.
export class SettingError extends Error {
  // field: the name of the field that is wrong.
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

// The body of the request. Throws a SettingError.
export function requestOf(settings, messages, model) {
  const body = { model, messages: messagesOf(settings, messages), explain: true };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"]) {
    if (settings[name]) body[name] = Number(settings[name]);
  }
  if (settings.drafting) body.draft_tokens = Number(settings.drafting);
  if (settings.thoughts) body.reasoning_effort = settings.thoughts;
  if (settings.alternatives) Object.assign(body, { logprobs: true, top_logprobs: Number(settings.alternatives) });
  if (settings.tools?.trim()) body.tools = toolsOf(settings.tools);
  if (hasTools() && settings.mcp !== "off") body.tools = [...(body.tools ?? []), ...declared()];
  return Object.assign(body, formOf(settings));
}

// The tools in the setting of that name. Throws a SettingError.
function toolsOf(text) {
  const tools = parsed("tools", "“Tools”", text);
  if (Array.isArray(tools)) return tools;
  throw new SettingError("“Tools” in the settings is not a list: put it in [ and ].", "tools");
}

// The fields of the request that constrain the form of the answer. Throws a SettingError.
function formOf({ form, schema, choices }) {
  if (form === "json") return { response_format: { type: "json_object" } };
  if (form === "schema") return { json_schema: parsed("schema", "“JSON schema”", schema ?? "") };
  if (form !== "choices") return {};
  const lines = (choices ?? "")
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  if (!lines.length) throw new SettingError("There are no choices. Write one per line in the settings.", "choices");
  return { grammar: `root ::= ${lines.map((line) => JSON.stringify(line)).join(" | ")}` };
}

// The value of a setting in JSON. Throws a SettingError.
// name: the field's name; label: its name for the user.
function parsed(name, label, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(`${label} in the settings is not valid JSON: ${error.message}`, name);
  }
}

// The messages as the request has them, the system text first.
function messagesOf(settings, messages) {
  const sent = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content, files = [], calls = [], callId } of messages) {
    if (role === "tool") sent.push({ role, content: contentOf(content, files), tool_call_id: callId });
    else if (role === "user") {
      const texts = [...files.filter((file) => !file.image).map(fileText), content];
      sent.push({ role, content: contentOf(texts.join("\n\n"), files) });
    } else if (content || calls.length) {
      const functions = calls.map(({ id, name, json }) => ({
        id,
        type: "function",
        function: { name, arguments: json },
      }));
      sent.push({ role, content, ...(calls.length ? { tool_calls: functions } : {}) });
    }
  }
  return sent;
}

// A text file as a question has it, in a block of code.
function fileText({ name, text }) {
  let fence = "```";
  while (text.includes(fence)) fence += "`";
  return `${name}:\n${fence}\n${text}\n${fence}`;
}
