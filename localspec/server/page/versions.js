// A conversation's messages as a tree: each follows the one before it in their list, or the one
// at the place that its `after` says (-1: none). Messages that follow the same one are versions
// of a turn. What leads to the message at the place `end` is shown.

const MOST = 200; // characters of a title

export const placeBefore = ({ messages }, at) => messages[at].after ?? at - 1;

export function shown(conversation) {
  const path = [];
  for (let at = conversation.end; at >= 0; at = placeBefore(conversation, at)) path.push(conversation.messages[at]);
  return path.reverse();
}

export function versionsOf(conversation, message) {
  const { messages } = conversation;
  const before = placeBefore(conversation, messages.indexOf(message));
  return messages.filter(({ role }, at) => role === message.role && placeBefore(conversation, at) === before);
}

// Shows a version, with what came last behind it.
export function turnTo(conversation, message) {
  const { messages } = conversation;
  let end = messages.indexOf(message);
  for (let next = end; next >= 0; next = messages.findLastIndex((_, at) => placeBefore(conversation, at) === end))
    end = next;
  show(conversation, end);
}

// Adds a message behind those that lead to it.
export function append(conversation, message, path) {
  message.after = conversation.messages.indexOf(path.at(-1));
  conversation.messages.push(message);
  show(conversation, conversation.messages.length - 1);
}

// A title that is not of people's own follows the first question that is shown.
function show(conversation, end) {
  const question = firstQuestion(conversation);
  const isOwn = !["", question.slice(0, 60), question.slice(0, MOST)].includes(conversation.title);
  conversation.end = end;
  if (!isOwn) conversation.title = firstQuestion(conversation).slice(0, MOST);
}

function firstQuestion(conversation) {
  const [first] = shown(conversation);
  return first?.content || first?.files?.[0]?.name || "";
}
