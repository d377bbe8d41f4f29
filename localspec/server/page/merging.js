// Merges the copies of a conversation that two tabs have into one with all messages of both.

import { placeBefore } from "./versions.js";

// A conversation whose messages have ids. Those of an older version of the page have none: they
// get the same ids in each copy, as they have the same places in it.
export const withIds = (conversation) => ({
  ...conversation,
  messages: conversation.messages.map((message, at) => ({ ...message, id: message.id ?? `at ${at}` })),
});

// The fields of a conversation other than its messages. Indices of messages become their ids,
// since a message may have another index in another copy.
export function fieldsOf({ messages, settings, end, editing, ...fields }) {
  return {
    fields: { ...fields, end: messages[end]?.id, editing: messages[editing]?.id },
    settings: { ...settings },
  };
}

// Merges two copies of a conversation. Of a message in both, the one with the later edition
// counts; of the other fields, those that this tab has changed. `editing` is this tab's alone.
// own: this tab's copy. stored: the stored copy, which another tab may have written.
// common: the fields when both were last equal; undefined if they never were.
export function merged(own, stored, common) {
  const messages = stored.messages.map((message, at) => ({ ...message, after: placeBefore(stored, at) }));
  const places = new Map(messages.map(({ id }, at) => [id, at]));
  own.messages.forEach((message, at) => {
    const previous = own.messages[placeBefore(own, at)];
    const copy = { ...message, after: previous ? places.get(previous.id) : -1 };
    const place = places.get(message.id);
    if (place === undefined) {
      places.set(message.id, messages.length);
      messages.push(copy);
    } else if (editionOf(message) >= editionOf(messages[place])) {
      messages[place] = copy;
    }
  });
  const ownFields = fieldsOf(own);
  const storedFields = fieldsOf(stored);
  const fields = withChanges(storedFields.fields, ownFields.fields, common?.fields);
  return {
    ...fields,
    settings: withChanges(storedFields.settings, ownFields.settings, common?.settings),
    messages,
    end: places.get(fields.end) ?? -1,
    editing: places.get(ownFields.fields.editing),
  };
}

const editionOf = ({ edition = 0 }) => edition;

// The stored fields, with the own ones that differ from those that both had in common.
function withChanges(storedFields, ownFields, common = {}) {
  const changes = Object.entries(ownFields).filter(([name, value]) => value !== common[name]);
  return { ...storedFields, ...Object.fromEntries(changes) };
}

// Changes this tab's copy of a conversation into the merged one. Its messages stay the same
// objects. Returns those that are new or have changed.
export function adopt(own, mergedCopy) {
  const ownMessages = new Map(own.messages.map((message) => [message.id, message]));
  const changed = [];
  const messages = mergedCopy.messages.map((message) => {
    const ownMessage = ownMessages.get(message.id);
    if (ownMessage && editionOf(ownMessage) === editionOf(message))
      return Object.assign(ownMessage, { after: message.after });
    const target = ownMessage ?? {};
    for (const name of Object.keys(target)) delete target[name];
    changed.push(Object.assign(target, message));
    return target;
  });
  Object.assign(own, mergedCopy, { messages });
  if (own.editing === undefined) delete own.editing;
  return changed;
}
