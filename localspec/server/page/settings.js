// The form of settings: those of a conversation, and the colours of this browser.

import { $, counted, element } from "./dom.js";
import { requestOf } from "./question.js";
import { settingsOfNew } from "./store.js";

// Fills the form with the settings of a conversation.
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

// Whether a conversation's settings are right. Else it shows the field that is wrong.
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

// Changes the settings of a conversation to those in the form.
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

// The error in a conversation's settings; null if they are right.
function errorOf(conversation) {
  try {
    requestOf(conversation.settings, [], "");
  } catch (error) {
    return error;
  }
  return null;
}

// Shows what is wrong below the field that is wrong.
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

// Shows the values that count if a field is empty.
export function showDefaults(options) {
  for (const name of ["temperature", "top_p", "top_k", "min_p"])
    $("settings").querySelector(`[name=${name}]`).placeholder = options[name] ?? "";
}

// Shows the fields of the chosen form of answers, and hides those of the other forms.
function showForms() {
  const chosen = $("settings").querySelector("[name=form]").value;
  for (const field of $("settings").querySelectorAll("[data-form]")) field.hidden = field.dataset.form !== chosen;
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
