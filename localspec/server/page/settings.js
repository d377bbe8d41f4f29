// The form of settings: those of a conversation, and the colours of this browser.

import { $, counted, element } from "./dom.js";
import { requestOf } from "./question.js";
import { settingsOfNew } from "./store.js";

// Fills the form with what a conversation has.
function fillSettings(conversation) {
  const fields = $("settings").querySelectorAll("[name]");
  for (const field of fields) {
    field.value =
      field.name === "theme"
        ? (localStorage.getItem("localspec.theme") ?? "")
        : (conversation.settings[field.name] ?? "");
  }
  showForms();
  showError(conversation);
  showUseForNew(conversation);
}

export function openSettings(conversation) {
  fillSettings(conversation);
  $("settings").showModal();
}

// Whether a question can be asked with the settings. Else it shows the field that is wrong.
export function areRight(conversation) {
  const error = errorOf(conversation);
  if (!error) return true;
  openSettings(conversation);
  fieldOf(error.field).focus();
  $("settings-error").scrollIntoView({ block: "nearest" });
  return false;
}

// Lets new chats begin with the settings of a conversation.
export function useForNew(conversation) {
  settingsOfNew.keep(conversation.settings);
  showUseForNew(conversation);
}

function showUseForNew(conversation) {
  const isUsed = settingsOfNew.are(conversation.settings);
  $("used-for-new").textContent = isUsed ? "New chats begin with these settings." : "";
}

// Lets a conversation have what the form says.
export function readSettings(conversation) {
  for (const field of $("settings").querySelectorAll("[name]")) {
    if (field.name === "theme") localStorage.setItem("localspec.theme", field.value);
    else conversation.settings[field.name] = field.value;
  }
  useTheme();
  showForms();
  showError(conversation);
  showUseForNew(conversation);
}

const fieldOf = (name) => $("settings").querySelector(`[name=${name}]`);

function errorOf(conversation) {
  try {
    requestOf(conversation.settings, [], "");
  } catch (error) {
    return error;
  }
  return null;
}

// What is wrong stands below its field.
function showError(conversation) {
  const error = errorOf(conversation);
  for (const field of $("settings").querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
  $("settings-error").textContent = error?.message ?? "";
  if (!error) return;
  const field = fieldOf(error.field);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "settings-error");
  field.closest("label").after($("settings-error"));
}

// What holds where a field is empty, by its name.
export function showUsual(told) {
  for (const name of ["temperature", "top_p", "top_k", "min_p"])
    $("settings").querySelector(`[name=${name}]`).placeholder = told[name] ?? "";
}

function showForms() {
  const chosen = $("settings").querySelector("[name=form]").value;
  for (const each of $("settings").querySelectorAll("[data-form]")) each.hidden = each.dataset.form !== chosen;
}

export function useTheme() {
  document.documentElement.dataset.theme = localStorage.getItem("localspec.theme") ?? "";
}

export function addDraftLengths() {
  const lengths = Array.from({ length: 16 }, (_, at) =>
    element("option", { value: String(at + 1) }, counted(at + 1, "token")),
  );
  $("settings")
    .querySelector("[name=drafting]")
    .append(element("option", { value: "" }, "automatic"), element("option", { value: "0" }, "off"), ...lengths);
}
