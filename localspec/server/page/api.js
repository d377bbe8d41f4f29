// Asks the server. Addresses are relative, so that the page works behind a proxy's path, too.

const KEY = "localspec.key";

export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status; // 0: the server was not reached
    this.code = code; // the server's name for what is wrong
  }
}

export const rememberKey = (key) => sessionStorage.setItem(KEY, key);

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
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? told?.error ?? response.statusText;
  throw new ApiError(String(message), response.status, told?.error?.code);
}

export const models = async () => (await (await request("v1/models")).json()).data;

const props = async (model) => (await request(`props?model=${encodeURIComponent(model)}`)).json();

// Whether the model is shown pictures.
export const sees = async (model) => (await props(model)).modalities.vision;

// What holds where a request says nothing of it.
export const usual = async (model) => (await props(model)).default_generation_settings.params;

export const loaded = async () => (await (await request("api/ps")).json()).models;

const post = async (path, body, signal) => {
  const headers = { "content-type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
};

// The tools of the MCP servers that the server was started with.
export const mcpTools = () => post("mcp/tools", {});

// What comes of a call of one of them: its text, a note where that was cut, and its pictures.
export const callTool = (body, signal) => post("mcp/call", body, signal);

// Streams an answer: on(event) gets each event's JSON. Raises ApiError, also for a stream that
// ends before it says that it is complete.
export async function ask(body, signal, on) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The connection was lost before the answer was complete.");
    }
    if (part.done) throw new ApiError("The server ended before the answer was complete.");
    const events = (held + part.value).split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.slice(event.indexOf("data: ") + 6);
      if (data === "[DONE]") return;
      const told = JSON.parse(data);
      if (told.error) throw new ApiError(told.error.message, 500, told.error.code);
      on(told);
    }
  }
}
