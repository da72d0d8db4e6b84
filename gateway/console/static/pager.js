// From page to page of a list that goes on behind the last id of the page before.

import { h } from "./dom.js";
import { link } from "./routes.js";

// Where "Previous" leads to: what a page was come to from, as long as this document lives.
const cameFrom = new Map();

/** The page at one address is at another now, with what it was come to from. */
export function moved(before, now) {
  if (cameFrom.has(before)) cameFrom.set(now, cameFrom.get(before));
}

/** Links of view `name`: `next` is the id behind which the next page begins, null on the last one. */
export function pager(name, query, next, length) {
  const at = (after) => {
    const wanted = new URLSearchParams(query);
    wanted.delete("from");
    wanted.delete("after");
    return link(name, { ...Object.fromEntries(wanted), after });
  };
  const here = location.hash;
  const forward = next === null ? null : at(next);
  if (forward) cameFrom.set(forward, here);
  const back = cameFrom.get(here);
  const button = (text, href, key) =>
    href ? h("a", { class: "button", href, "data-key": key }, text) : h("span", { class: "button off", "aria-disabled": "true" }, text);
  return h(
    "div",
    { class: "pager" },
    button("First", query.has("after") || query.has("from") ? at(null) : null, "first"),
    button("Previous", back, "previous"),
    button("Next", forward, "next"),
    h("span", { class: "muted" }, length ? `${length} on this page` : ""),
  );
}
