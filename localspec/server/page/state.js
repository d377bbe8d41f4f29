// What the page has open.

import { Live } from "./live.js";
import { newConversation } from "./store.js";

export const live = new Live();
export const running = new Map(); // conversation's id → what answers in it
export const views = new Map(); // message → its view, of the conversation that is open

export const state = {
  open: newConversation(),
  attached: [], // to the next question
  attaching: Promise.resolve(), // what is sent waits for it
  begins: false, // an answer, as soon as it is sure that no other tab answers
  elsewhere: new Set(), // ids of conversations that other tabs answer
};
