// Pictures that people show a model: kept and sent as they are, as data URLs.

import { counted, element } from "./dom.js";

const KINDS = /^data:image\/(png|jpeg|webp|gif);base64,/;
const MOST_MB = 23; // in base64 such a picture still fits into the server's default limit for a request

export const isPicture = (file) => file.type.startsWith("image/");
export const isImage = (url) => typeof url === "string" && KINDS.test(url);

// A picture's file as it is attached to a question. Throws an Error with why it cannot be.
export async function pictureOf(file) {
  if (file.size > MOST_MB * 1e6)
    throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; the limit is ${MOST_MB} MB.`);
  const image = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read: ${reader.error.message}`));
    reader.readAsDataURL(file);
  });
  if (!isImage(image)) throw new Error(`${file.name} is not a PNG, JPEG, WebP or GIF image.`);
  return { name: file.name, image };
}

// The element that shows a file of a message.
export function fileView({ name, text, image }) {
  if (image) return element("img", { class: "picture", src: image, alt: name, title: name });
  return element("div", { class: "file" }, `📄 ${name}, ${counted(text.length, "character")}`);
}

// The content of a question or a result: its text, or parts, the pictures first.
export function contentOf(text, files) {
  const images = files.filter((file) => file.image);
  if (!images.length) return text;
  const parts = images.map(({ image }) => ({ type: "image_url", image_url: { url: image } }));
  return text ? [...parts, { type: "text", text }] : parts;
}
