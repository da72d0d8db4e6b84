// Views and their parameters in the part of the address behind `#`, so that every view can be linked to.

/** What somebody has typed into the address need not be encoded: it is taken as it stands then. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** `#/ledger/7?show=hex` as its name, what follows it, and its parameters. */
export function parsed() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: name || "cluster", rest: rest.map(decoded), query: new URLSearchParams(query) };
}

/** The hash of a view with parameters; empty ones are left out. */
export function link(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `#/${name}?${new URLSearchParams(given)}` : `#/${name}`;
}
