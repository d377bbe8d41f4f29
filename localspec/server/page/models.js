// The server's models: lists them, shows their memory, and waits for the server.

import { defaultOptions, loaded, models, rememberKey } from "./api.js";
import { banner, drawState } from "./conversations.js";
import { $, answerOf, element } from "./dom.js";
import { hasTools, readTools } from "./mcp.js";
import { showDefaults } from "./settings.js";
import { live, state } from "./state.js";

let served = []; // as /v1/models lists them

// Asks the user for the server's key. Returns whether there is one now.
export async function askKey() {
  const answer = await answerOf($("key"));
  const field = $("key").querySelector("input");
  if (answer !== "ok" || !field.value) return false;
  rememberKey(field.value);
  field.value = "";
  await readModels();
  return true;
}

// Fills the list of models, and reads the tools of MCP servers.
export async function readModels() {
  try {
    served = await models();
    const errors = await readTools();
    $("mcp-setting").hidden = !hasTools();
    banner(errors.join(" "));
  } catch (error) {
    if (error.status === 401) return askKey();
    banner(error.message);
    waitForServer();
    return;
  }
  const chosen = state.open.settings.model ?? localStorage.getItem("localspec.model");
  $("model").replaceChildren(...served.map(({ id }) => element("option", { value: id }, id)));
  if (served.some(({ id }) => id === chosen)) $("model").value = chosen;
  await noteModel();
}

// Shows the facts about the chosen model.
export async function noteModel() {
  live.model = served.find(({ id }) => id === $("model").value) ?? null;
  live.outlook = null;
  showDefaults(await defaultOptions($("model").value).catch(() => ({})));
  await noteMemory();
}

// Shows the memory and the device of the chosen model, if it is loaded.
export async function noteMemory() {
  const chosen = $("model").value;
  const loadedModels = await loaded().catch(() => []);
  const model = loadedModels.find(({ name }) => [chosen, `${chosen}:latest`].includes(name));
  live.memory = model?.size ?? null;
  live.device = model?.device ?? null;
  drawState();
}

let waiting = null; // the timer while the page waits
// Asks again and again until the server answers, and reads its models then.
export function waitForServer() {
  waiting ??= setInterval(async () => {
    const isThere = await fetch("health").then(
      (response) => response.ok,
      () => false,
    );
    if (!isThere) return;
    clearInterval(waiting);
    waiting = null;
    await readModels();
    banner("The server is back.");
  }, 2000);
}
