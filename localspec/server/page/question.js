// Settings and messages → the request that asks for its next answer.

import { declared, hasTools } from "./mcp.js";
import { contentOf } from "./pictures.js";

// What is wrong in the settings.
export class SettingError extends Error {
  // field: its name.
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

// Raises SettingError.
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

function toolsOf(text) {
  const tools = parsed("tools", "“Tools”", text);
  if (Array.isArray(tools)) return tools;
  throw new SettingError("“Tools” in the settings is not a list: put it in [ and ].", "tools");
}

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

function parsed(name, what, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(`${what} in the settings is not valid JSON: ${error.message}`, name);
  }
}

function messagesOf(settings, messages) {
  const told = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content, files = [], calls = [], callId } of messages) {
    if (role === "tool") told.push({ role, content: contentOf(content, files), tool_call_id: callId });
    else if (role === "user") {
      const texts = [...files.filter((file) => !file.image).map(fileText), content];
      told.push({ role, content: contentOf(texts.join("\n\n"), files) });
    } else if (content || calls.length) {
      const functions = calls.map(({ id, name, json }) => ({
        id,
        type: "function",
        function: { name, arguments: json },
      }));
      told.push({ role, content, ...(calls.length ? { tool_calls: functions } : {}) });
    }
  }
  return told;
}

function fileText({ name, text }) {
  let fence = "```";
  while (text.includes(fence)) fence += "`";
  return `${name}:\n${fence}\n${text}\n${fence}`;
}
