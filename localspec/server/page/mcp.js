// Tools of MCP servers: which there are, and which of them may be called without a question.

import { mcpTools } from "./api.js";

let found = []; // as the server lists them
const allowed = new Map(); // names of tools by the conversation in which they are allowed

// Returns what is wrong with servers that have no tools.
export async function readTools() {
  const told = await mcpTools().catch(() => ({ tools: [], errors: [] }));
  found = told.tools;
  return told.errors;
}

export const hasTools = () => found.length > 0;

export const toolOf = (name) => found.find((each) => each.name === name);

// As a request declares them.
export const declared = () =>
  found.map(({ name, description, parameters }) => ({
    type: "function",
    function: { name, description, parameters },
  }));

export function mayCall(conversation, tool) {
  const isAllowed = tool.is_allowed || allowed.get(conversation.id)?.has(tool.name);
  return !tool.is_destructive && isAllowed;
}

// choice: "chat" or "always".
export function allow(conversation, tool, choice) {
  if (choice === "always") tool.is_allowed = true;
  if (!allowed.has(conversation.id)) allowed.set(conversation.id, new Set());
  allowed.get(conversation.id).add(tool.name);
}
