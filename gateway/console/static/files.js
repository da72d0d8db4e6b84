// Files: saved from the page, or chosen by whoever looks at it. Nothing of them leaves the page by itself.

import { h } from "./dom.js";

/** Has the browser save content under a name. */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const anchor = h("a", { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The bytes of a file as base64. */
export async function base64Of(file) {
  const content = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let start = 0; start < content.length; start += 0x8000) text += String.fromCharCode(...content.subarray(start, start + 0x8000));
  return btoa(text);
}
