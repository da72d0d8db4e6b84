// Builds elements. Whatever comes from a server gets in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function put(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** An element of HTML: properties are attributes, `onclick` and its like are listeners; text children stay text. */
export function h(tag, properties, ...children) {
  return put(document.createElement(tag), properties, children);
}

/** An element of SVG. */
export function s(tag, properties, ...children) {
  return put(document.createElementNS(SVG, tag), properties, children);
}

/** Puts new children into a place; what had the focus has it again, if it is still there under its `data-key`. */
export function replace(place, ...children) {
  const active = document.activeElement;
  const key = place.contains(active) ? active.dataset.key : undefined;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (key !== undefined) {
    const same = [...place.querySelectorAll("[data-key]")].find((element) => element.dataset.key === key);
    same?.focus({ preventScroll: true });
  }
}

/** A table in a frame that scrolls by itself; columns are texts, or `{text, class, sort}`, `sort` as `aria-sort` has it. */
export function table(label, columns, rows, empty) {
  const heads = columns.map((column) => {
    const { text, class: kind, sort } = typeof column === "string" ? { text: column } : column;
    return h("th", { scope: "col", class: kind, "aria-sort": sort }, text);
  });
  const body = rows.length ? rows : [h("tr", null, h("td", { colspan: columns.length, class: "empty" }, empty))];
  return h(
    "div",
    { class: "scroll" },
    h("table", { "aria-label": label }, h("thead", null, h("tr", null, heads)), h("tbody", null, body)),
  );
}

/** A panel with a heading and, at its right, whatever belongs there. */
export function panel(title, aside, ...children) {
  return h(
    "section",
    { class: "panel", "aria-label": title },
    h("div", { class: "panel-head" }, h("h2", null, title), h("div", { class: "aside" }, aside)),
    children,
  );
}

/** Names and values, one below the other. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** A word in a colour that says how it is meant: good, warn, bad, info or nothing. */
export function chip(text, kind, title) {
  return h("span", { class: `chip ${kind ?? ""}`, title }, text);
}

/** A bar that is filled to a part of 1. */
export function bar(part, kind, label) {
  const width = Math.max(0, Math.min(1, part)) * 100;
  return s(
    "svg",
    { class: `meter ${kind ?? ""}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "track", width: 100, height: 8 }),
    s("rect", { class: "fill", width, height: 8 }),
  );
}
