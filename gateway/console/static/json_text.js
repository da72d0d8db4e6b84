// JSON laid out anew without a change of its values: numbers, which may be greater than a browser's, stay as they stand,
// and so do keys that stand twice, and their order. Not its job: telling what is no JSON, which JSON.parse does.

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{}:,]|[^\s[\]{}:,"]+/g;
// Deeper than that lines are not indented any more: their blanks would grow with the square of the depth.
const DEEPEST = 50;

/** JSON in one line, or with an indent over several, as JSON.stringify lays it out. */
export function laidOut(text, indent = "") {
  const line = (depth) => (indent ? `\n${indent.repeat(Math.min(depth, DEEPEST))}` : "");
  let depth = 0;
  let before = "";
  const laid = (token) => {
    const begins = before === "{" || before === "[";
    const ends = token === "}" || token === "]";
    const isFirstOfLine = begins !== ends || before === ",";
    depth += begins - ends;
    const blank = before === ":" && indent ? " " : "";
    before = token;
    return (isFirstOfLine ? line(depth) : blank) + (token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token);
  };
  return text.match(TOKENS).map(laid).join("");
}
