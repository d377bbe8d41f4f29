// Tools of MCP servers: which there are, and which of them may be called without asking the user.

import { mcpTools } from "./api.js";

let tools = []; // as the server lists them
const allowed = new Map(); // a conversation's id → the names of the tools that are allowed in it

// Reads the tools from the server. Returns the errors of the MCP servers that do not work.
export async function readTools() {
  const response = await mcpTools().catch(() => ({ tools: [], errors: [] }));
  tools = response.tools;
  return response.errors;
}

export const hasTools = () => tools.length > 0;

export const toolOf = (name) => tools.find((tool) => tool.name === name);

// The tools as a request declares them.
export const declared = () =>
  tools.map(({ name, description, parameters }) => ({
    type: "function",
    function: { name, description, parameters },
  }));

// Whether a tool may be called in a conversation without asking the user.
export function mayCall(conversation, tool) {
  const isAllowed = tool.is_allowed || allowed.get(conversation.id)?.has(tool.name);
  return !tool.is_destructive && isAllowed;
}

// Lets a tool be called without asking: in one conversation ("chat") or in all ("always").
export function allow(conversation, tool, choice) {
  if (choice === "always") tool.is_allowed = true;
  if (!allowed.has(conversation.id)) allowed.set(conversation.id, new Set());
  allowed.get(conversation.id).add(tool.name);
}
