// Views and their parameters in the part of the address behind `#`, so that every view can be linked to.

/** `#/ledger/7?show=hex` as its name, what follows it, and its parameters. */
export function parsed() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: name || "cluster", rest: rest.map(decodeURIComponent), query: new URLSearchParams(query) };
}

/** The hash of a view with parameters; empty ones are left out. */
export function link(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `#/${name}?${new URLSearchParams(given)}` : `#/${name}`;
}
