// Copies of a conversation in two tabs → one that has all messages of both.

import { placeBefore } from "./versions.js";

// Messages of an earlier page have no ids. In each copy they stand at the same places.
export const withIds = (conversation) => ({
  ...conversation,
  messages: conversation.messages.map((message, at) => ({ ...message, id: message.id ?? `at ${at}` })),
});

// What a conversation has beside its messages. Places in their list differ between copies, so
// messages are named by their ids.
export function fieldsOf({ messages, settings, end, editing, ...fields }) {
  return {
    fields: { ...fields, end: messages[end]?.id, editing: messages[editing]?.id },
    settings: { ...settings },
  };
}

// own: a tab's conversation. kept: the one in the store, which another tab may have written.
// before: the fields that own and the store had in common last; undefined where there are none.
// Of a message that both have, the one of the later edition counts; of other fields, what own
// changed. Which message is edited is a matter of each tab.
export function merged(own, kept, before) {
  const messages = kept.messages.map((message, at) => ({ ...message, after: placeBefore(kept, at) }));
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
  const mine = fieldsOf(own);
  const theirs = fieldsOf(kept);
  const fields = withChanges(theirs.fields, mine.fields, before?.fields);
  return {
    ...fields,
    settings: withChanges(theirs.settings, mine.settings, before?.settings),
    messages,
    end: places.get(fields.end) ?? -1,
    editing: places.get(mine.fields.editing),
  };
}

const editionOf = ({ edition = 0 }) => edition;

function withChanges(theirs, mine, before = {}) {
  const changes = Object.entries(mine).filter(([name, value]) => value !== before[name]);
  return { ...theirs, ...Object.fromEntries(changes) };
}

// Lets own be what was merged. Its messages stay the same objects. Returns those that are new or
// have changed.
export function take(own, found) {
  const held = new Map(own.messages.map((message) => [message.id, message]));
  const changed = [];
  const messages = found.messages.map((message) => {
    const mine = held.get(message.id);
    if (mine && editionOf(mine) === editionOf(message)) return Object.assign(mine, { after: message.after });
    const taken = mine ?? {};
    for (const name of Object.keys(taken)) delete taken[name];
    changed.push(Object.assign(taken, message));
    return taken;
  });
  Object.assign(own, found, { messages });
  if (own.editing === undefined) delete own.editing;
  return changed;
}
