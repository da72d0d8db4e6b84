// Numbers, sizes, times and bytes for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 1536 → "1.5 KiB". */
export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let value = size;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? count(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** 1234567 → "1,234,567"; also of a number that comes as text, as ids do. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return BigInt(typeof value === "number" ? Math.round(value) : value).toLocaleString("en");
}

/** A number in few characters: 12, 3.4, 4,012, 12.3k, 4.1M. */
export function short(value) {
  const steps = [
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k", 1e3],
  ];
  for (const [from, letter, by] of steps) {
    if (value >= from) return `${(value / (by ?? from)).toFixed(1)}${letter}`;
  }
  return value >= 100 || Number.isInteger(value) ? count(value) : value.toFixed(value < 1 ? 2 : 1);
}

/** A value of a chart with its unit. */
export function measured(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytes(value);
  if (unit === "bytes/s") return `${bytes(value)}/s`;
  if (unit === "ms") return `${short(value)} ms`;
  return unit === "count/s" ? `${short(value)}/s` : short(value);
}

const SPANS = [
  [86400 * 365, "y"],
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
];

/** Seconds in one unit: "3 d". */
export function span(seconds) {
  for (const [length, name] of SPANS) {
    if (seconds >= length * (name === "min" ? 1 : 2) || (seconds >= length && name !== "min")) {
      return `${Math.floor(seconds / length)} ${name}`;
    }
  }
  return `${Math.max(0, Math.floor(seconds))} s`;
}

/** How long ago; "–" for what never was. */
export function ago(ms) {
  return ms ? `${span((Date.now() - ms) / 1000)} ago` : "–";
}

/** A moment to the second, with its zone. */
export function moment(ms) {
  return ms ? new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC") : "";
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

const SHAPELESS = /(?![\n\t])[\p{C}\ufffd]/gu;

/** Bytes as text, a dot for what is none or has no shape of its own. With `lines` line ends and tabs stay. */
export function asText(content, lines) {
  const text = new TextDecoder().decode(content).replace(SHAPELESS, "·");
  return lines ? text : text.replace(/[\n\t]/g, " ");
}

function hexByte(value) {
  return value.toString(16).padStart(2, "0");
}

/** Bytes in hex, in one line. */
export function asHex(content) {
  return Array.from(content, hexByte).join(" ");
}

/** Bytes as `offset  hex  characters`, sixteen a line. */
export function hexDump(content) {
  const lines = [];
  for (let start = 0; start < content.length; start += 16) {
    const part = content.subarray(start, start + 16);
    const cells = Array.from(part, hexByte);
    const left = cells.slice(0, 8).join(" ").padEnd(23);
    const right = cells.slice(8).join(" ").padEnd(23);
    const letters = Array.from(part, (value) => (value >= 0x20 && value < 0x7f ? String.fromCharCode(value) : "."));
    lines.push(`${start.toString(16).padStart(8, "0")}  ${left}  ${right}  ${letters.join("")}`);
  }
  return lines.join("\n");
}
