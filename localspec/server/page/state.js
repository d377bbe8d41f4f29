// The state of the page that its modules share.

import { Live } from "./live.js";
import { newConversation } from "./store.js";

export const live = new Live();
export const running = new Map(); // a conversation's id → the run that answers in it
export const views = new Map(); // a message of the open conversation → its MessageView

export const state = {
  open: newConversation(), // the conversation that is shown
  attached: [], // files for the next question
  attaching: Promise.resolve(), // settled once all chosen files are attached
  begins: false, // whether an answer begins as soon as it is sure that no other tab answers
  elsewhere: new Set(), // ids of the conversations that other tabs answer
};
