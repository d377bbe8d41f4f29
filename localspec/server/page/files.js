// Text files that are attached to a question, read as the terminal reads them (chat/attachment.py).

const MOST_BYTES = 2_000_000;
const PDF = /^%PDF-\d/;
// Byte order marks. UTF-32's begins with UTF-16's, so it has to be tried first.
const MARKS = [
  ["utf-8", [0xef, 0xbb, 0xbf]],
  ["utf-32le", [0xff, 0xfe, 0, 0]],
  ["utf-32be", [0, 0, 0xfe, 0xff]],
  ["utf-16le", [0xff, 0xfe]],
  ["utf-16be", [0xfe, 0xff]],
];
// Bytes that are no character in windows-1252.
const UNUSED = new Set([0x81, 0x8d, 0x8f, 0x90, 0x9d]);

// The text of a file. Throws an Error with why the file cannot be attached.
export async function textOf(file) {
  if (file.size > MOST_BYTES)
    throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the limit is 2 MB.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (PDF.test(String.fromCharCode(...bytes.subarray(0, 6))))
    throw new Error(`${file.name} is a PDF. Convert it to text first, with pdftotext, say.`);
  const text = decoded(bytes);
  if (text === null || text.includes("\0"))
    throw new Error(`${file.name} is not a text file. Convert it to text first, preferably in UTF-8.`);
  return text.replaceAll("\r\n", "\n");
}

// The text in a file's bytes; null if they are no text.
function decoded(bytes) {
  const startsWith = (mark) => mark.every((byte, at) => bytes[at] === byte);
  const [encoding, mark] = MARKS.find(([, candidate]) => startsWith(candidate)) ?? [];
  if (mark) return decodedAs(encoding, bytes.subarray(mark.length));
  const text = decodedAs("utf-8", bytes);
  if (text !== null) return text;
  return isOneByte(bytes) ? decodedAs("windows-1252", bytes) : null;
}

// The text in bytes of an encoding; null if they are not in it.
function decodedAs(encoding, bytes) {
  if (encoding.startsWith("utf-32")) return decodedUtf32(bytes, encoding === "utf-32le");
  try {
    return new TextDecoder(encoding, { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

// The text in bytes of UTF-32, which browsers do not decode; null if they are not UTF-32.
function decodedUtf32(bytes, isLittleEndian) {
  if (bytes.length % 4) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const characters = [];
  for (let at = 0; at < bytes.length; at += 4) {
    const codePoint = view.getUint32(at, isLittleEndian);
    if (codePoint > 0x10ffff || (codePoint >= 0xd800 && codePoint <= 0xdfff)) return null;
    characters.push(String.fromCodePoint(codePoint));
  }
  return characters.join("");
}

// Whether a byte is a control character that no text has. Texts may have tabs, line ends, form
// feeds and escapes.
const isControl = (byte) => byte < 9 || (byte > 13 && byte < 27) || (byte > 27 && byte < 32) || byte === 127;

// Whether bytes that are not valid UTF-8 are a text with one byte for each character, and not
// damaged UTF-8, which has more whole characters beyond ASCII than damaged ones.
function isOneByte(bytes) {
  if (bytes.some((byte) => isControl(byte) || UNUSED.has(byte))) return false;
  const text = new TextDecoder("utf-8").decode(bytes);
  const numDamaged = text.split("\ufffd").length - 1;
  const numWhole = [...text].filter((character) => character > "\x7f" && character !== "\ufffd").length;
  return numWhole <= numDamaged;
}
