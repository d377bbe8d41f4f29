// Text files that are attached to a question, read as the terminal reads them (chat/attachment.py).

const MOST_BYTES = 2_000_000;
const PDF = /^%PDF-\d/;
// Longer marks first: that of UTF-32 begins as that of UTF-16 does.
const MARKS = [
  ["utf-8", [0xef, 0xbb, 0xbf]],
  ["utf-32le", [0xff, 0xfe, 0, 0]],
  ["utf-32be", [0, 0, 0xfe, 0xff]],
  ["utf-16le", [0xff, 0xfe]],
  ["utf-16be", [0xfe, 0xff]],
];
// Bytes that stand for no character in the encoding of Windows.
const UNUSED = new Set([0x81, 0x8d, 0x8f, 0x90, 0x9d]);

// The text of a file. Raises Error with why it cannot be attached.
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

// The text; null where the bytes are none.
function decoded(bytes) {
  const [encoding, mark] = MARKS.find(([, signs]) => signs.every((sign, at) => bytes[at] === sign)) ?? [];
  if (mark) return decodedAs(encoding, bytes.subarray(mark.length));
  const text = decodedAs("utf-8", bytes);
  if (text !== null) return text;
  return isOneByte(bytes) ? decodedAs("windows-1252", bytes) : null;
}

function decodedAs(encoding, bytes) {
  if (encoding.startsWith("utf-32")) return decodedWide(bytes, encoding === "utf-32le");
  try {
    return new TextDecoder(encoding, { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

// UTF-32, which browsers do not read.
function decodedWide(bytes, isLittle) {
  if (bytes.length % 4) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const signs = [];
  for (let at = 0; at < bytes.length; at += 4) {
    const number = view.getUint32(at, isLittle);
    if (number > 0x10ffff || (number >= 0xd800 && number <= 0xdfff)) return null;
    signs.push(String.fromCodePoint(number));
  }
  return signs.join("");
}

// Whether no text has the byte, whatever its encoding; tabs, line ends, form feeds and escapes some have.
const isControl = (byte) => byte < 9 || (byte > 13 && byte < 27) || (byte > 27 && byte < 32) || byte === 127;

// Whether bytes that are not UTF-8 are a text of one byte a character, and not damaged UTF-8.
function isOneByte(bytes) {
  if (bytes.some((byte) => isControl(byte) || UNUSED.has(byte))) return false;
  const read = new TextDecoder("utf-8").decode(bytes);
  const numDamaged = read.split("\ufffd").length - 1;
  const numWhole = [...read].filter((sign) => sign > "\x7f" && sign !== "\ufffd").length;
  return numWhole <= numDamaged;
}
