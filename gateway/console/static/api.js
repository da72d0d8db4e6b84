// Asks the server that served this page. The token is held here, in memory, and nowhere else.

let token = null;

/** What the server refused, with its own words; status 0 when there was no answer. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setToken(value) {
  token = value || null;
}

export function hasToken() {
  return token !== null;
}

async function request(method, path, { query = {}, body, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const url = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const content = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(url, { method, headers, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "this server does not answer");
  }
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer;
  if (response.status === 401) token = null;
  throw new Refused(response.status, answer?.error ?? `${response.status} ${response.statusText}`);
}

/** `get("/ledgers", {limit: 50})` below the console's own prefix. */
export function get(path, query, signal) {
  return request("GET", `/api/v1/console${path}`, { query, signal });
}

/** A change, at one of BookKeeper's own paths. */
export function change(method, path, query, body) {
  return request(method, `/api/v1${path}`, { query, body });
}
