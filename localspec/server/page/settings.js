// The form of settings: those of a conversation, and the colours of this browser.

import { $, element } from "./dom.js";
import { requestOf } from "./question.js";

// Fill the form with what a conversation has.
export function fillSettings(conversation) {
  const fields = $("settings").querySelectorAll("[name]");
  for (const field of fields) {
    field.value =
      field.name === "theme"
        ? (localStorage.getItem("localspec.theme") ?? "")
        : (conversation.settings[field.name] ?? "");
  }
  showForms();
}

// Let a conversation have what the form says; what is wrong stands below it.
export function readSettings(conversation) {
  for (const field of $("settings").querySelectorAll("[name]")) {
    if (field.name === "theme") localStorage.setItem("localspec.theme", field.value);
    else conversation.settings[field.name] = field.value;
  }
  useTheme();
  showForms();
  try {
    requestOf(conversation.settings, [], "");
    $("settings-error").textContent = "";
  } catch (error) {
    $("settings-error").textContent = error.message;
  }
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
    element("option", { value: String(at + 1) }, `${at + 1} tokens`),
  );
  $("settings")
    .querySelector("[name=drafting]")
    .append(element("option", { value: "" }, "automatic"), element("option", { value: "0" }, "off"), ...lengths);
}
