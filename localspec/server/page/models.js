// The server's models: which there are, what they take, and waiting for the server.

import { loaded, models, rememberKey, usual } from "./api.js";
import { banner, drawState } from "./conversations.js";
import { $, answerOf, element } from "./dom.js";
import { hasTools, readTools } from "./mcp.js";
import { showUsual } from "./settings.js";
import { live, state } from "./state.js";

let served = []; // as /v1/models lists them

// Asks for the server's key; whether there is one now.
export async function askKey() {
  const said = await answerOf($("key"));
  const field = $("key").querySelector("input");
  if (said !== "ok" || !field.value) return false;
  rememberKey(field.value);
  field.value = "";
  await readModels();
  return true;
}

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
  $("model").replaceChildren(...served.map((each) => element("option", { value: each.id }, each.id)));
  if (served.some((each) => each.id === chosen)) $("model").value = chosen;
  await noteModel();
}

export async function noteModel() {
  live.model = served.find((each) => each.id === $("model").value) ?? null;
  live.outlook = null;
  showUsual(await usual($("model").value).catch(() => ({})));
  await noteMemory();
}

export async function noteMemory() {
  const name = $("model").value;
  const found = await loaded().catch(() => []);
  const model = found.find((each) => [name, `${name}:latest`].includes(each.name));
  live.memory = model?.size ?? null;
  live.device = model?.device ?? null;
  drawState();
}

let waiting = null;
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
