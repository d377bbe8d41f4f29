// Text files that are attached to a question.

const MOST_BYTES = 2_000_000;

// The text of a file. Raises Error with why it cannot be attached.
export async function textOf(file) {
  if (file.size > MOST_BYTES)
    throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; at most 2 MB can be attached.`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // not UTF-8
  }
  throw new Error(`${file.name} is not a text file in UTF-8.`);
}
