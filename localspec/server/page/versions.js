// A conversation's messages form a tree. The parent of a message is the message at the index in
// its field `after` (-1: it has none); without that field, the message before it in the list.
// Messages with the same parent are versions of each other. The page shows the message at the
// index `end` and all that lead to it.

const MOST_IN_TITLE = 200; // characters
const MOST_IN_OLD_TITLE = 60; // characters of a title that an older version of the page made

// The index of the parent of the message at an index; -1 if it has none.
export const placeBefore = ({ messages }, at) => messages[at].after ?? at - 1;

// The messages that the page shows, in their order.
export function shown(conversation) {
  const path = [];
  for (let at = conversation.end; at >= 0; at = placeBefore(conversation, at)) path.push(conversation.messages[at]);
  return path.reverse();
}

// All versions of a message, with itself, in the order in which they were made.
export function versionsOf(conversation, message) {
  const { messages } = conversation;
  const before = placeBefore(conversation, messages.indexOf(message));
  return messages.filter(({ role }, at) => role === message.role && placeBefore(conversation, at) === before);
}

// Shows a version of a message, and after it the latest message that followed, and so on.
export function turnTo(conversation, message) {
  const { messages } = conversation;
  let end = messages.indexOf(message);
  for (let next = end; next >= 0; next = messages.findLastIndex((_, at) => placeBefore(conversation, at) === end))
    end = next;
  show(conversation, end);
}

// Adds a message to a conversation, and shows it.
// path: the messages that lead to it.
export function append(conversation, message, path) {
  message.after = conversation.messages.indexOf(path.at(-1));
  conversation.messages.push(message);
  show(conversation, conversation.messages.length - 1);
}

// Shows the message at the index `end`. The title becomes the first question that is shown, unless
// the user has chosen another.
function show(conversation, end) {
  const question = firstQuestion(conversation);
  const ownTitles = ["", question.slice(0, MOST_IN_OLD_TITLE), question.slice(0, MOST_IN_TITLE)];
  const isChosen = !ownTitles.includes(conversation.title);
  conversation.end = end;
  if (!isChosen) conversation.title = firstQuestion(conversation).slice(0, MOST_IN_TITLE);
}

// The text of the first question that is shown, or the name of its first file; "" without one.
function firstQuestion(conversation) {
  const [first] = shown(conversation);
  return first?.content || first?.files?.[0]?.name || "";
}
