// Requests to the server. Their paths are relative, so that the page also works behind a proxy
// that adds a path.

const KEY = "localspec.key";

export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status; // 0: the server was not reached
    this.code = code; // the server's name for what is wrong
  }
}

export const rememberKey = (key) => sessionStorage.setItem(KEY, key);

// Returns a response with a status of success. Throws an ApiError for any other.
async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is “localspec serve” still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? body?.error ?? response.statusText;
  throw new ApiError(String(message), response.status, body?.error?.code);
}

export const models = async () => (await (await request("v1/models")).json()).data;

const props = async (model) => (await request(`props?model=${encodeURIComponent(model)}`)).json();

// Whether a model reads pictures.
export const sees = async (model) => (await props(model)).modalities.vision;

// The sampling options of a model for a request that sets none.
export const defaultOptions = async (model) => (await props(model)).default_generation_settings.params;

export const loaded = async () => (await (await request("api/ps")).json()).models;

const post = async (path, body, signal) => {
  const headers = { "content-type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
};

// The tools of the MCP servers that the server was started with.
export const mcpTools = () => post("mcp/tools", {});

// Calls a tool. Returns the text of its result, a note if that was cut, and its pictures.
export const callTool = (body, signal) => post("mcp/call", body, signal);

// Requests an answer as a stream. Throws an ApiError, also if the stream ends too early.
// onEvent: called with each event's JSON.
export async function ask(body, signal, onEvent) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unfinished = ""; // the beginning of an event
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The connection was lost before the answer was complete.");
    }
    if (part.done) throw new ApiError("The server ended before the answer was complete.");
    const events = (unfinished + part.value).split("\n\n");
    unfinished = events.pop();
    for (const event of events) {
      const data = event.slice(event.indexOf("data: ") + 6);
      if (data === "[DONE]") return;
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(json.error.message, 500, json.error.code);
      onEvent(json);
    }
  }
}
