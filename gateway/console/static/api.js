// Asks the server that served this page. A token is given once, to log in: the browser then has a cookie that no script
// reads, and this page the session's CSRF token, which goes with every change.

const SESSION = "/api/v1/console/session";

let session = { principal: null, csrf: null };

/** What the server refused, with its own words; status 0 when there was no answer. */
export class Refused extends Error {
  constructor(status, message, retrySeconds = 0) {
    super(message);
    this.status = status;
    /** After which it is worth another try, where the server says so. */
    this.retrySeconds = retrySeconds;
  }
}

/** Who is logged in, as the server names them; null: nobody. */
export function principal() {
  return session.principal;
}

export function isLoggedIn() {
  return session.principal !== null;
}

/** Whether a session can be ended here: not where a proxy says with every request who asks. */
export function hasSession() {
  return session.csrf !== null;
}

/** Learns of a session that the browser has from before. */
export async function recall() {
  session = await request("GET", SESSION);
}

/** Throws Refused for a token that the server does not know. */
export async function login(token) {
  session = await request("POST", SESSION, { body: { token } });
}

/** Ends the session that the browser has now, whichever tab began it. Throws Refused where it may go on. */
export async function logout() {
  await recall();
  session = await request("DELETE", SESSION);
}

function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/** Where a path below the console's own prefix is, for a link. */
export function urlOf(path, query) {
  return withQuery(`/api/v1/console${path}`, query);
}

async function request(method, path, { query = {}, body, signal } = {}) {
  const headers = {};
  if (session.csrf !== null && method !== "GET") headers["X-CSRF-Token"] = session.csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    const content = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(withQuery(path, query), { method, headers, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "this server does not answer");
  }
  const answer = await response.json().catch(() => null);
  signal?.throwIfAborted();
  if (response.ok) return answer;
  if (response.status === 401) session = { principal: null, csrf: null };
  const retrySeconds = Number(response.headers.get("Retry-After")) || 0;
  throw new Refused(response.status, answer?.error ?? `${response.status} ${response.statusText}`, retrySeconds);
}

/**
 * A request that needs the session's CSRF token: another tab may have begun another session since, in which it is asked
 * once more. Not where somebody else is logged in there: who asked has not seen as whom.
 */
async function requestInSession(method, path, options) {
  const before = session;
  try {
    return await request(method, path, options);
  } catch (error) {
    if (error.status !== 403) throw error;
    await recall().catch(() => {});
    if (session.csrf === null || session.csrf === before.csrf) throw error;
    if (session.principal !== before.principal) throw new Refused(403, `this browser is logged in as ${session.principal} by now; nothing was done`);
  }
  return request(method, path, options);
}

/** `get("/ledgers", {limit: 50})` below the console's own prefix. */
export function get(path, query, signal) {
  return request("GET", `/api/v1/console${path}`, { query, signal });
}

/** What a path below the console's prefix works out of a body; nothing is changed by it. */
export function work(path, body, signal) {
  return requestInSession("POST", `/api/v1/console${path}`, { body, signal });
}

/** The bytes of an answer that is a file. */
export async function download(path, query) {
  const response = await fetch(urlOf(path, query), { cache: "no-store" });
  if (response.ok) return response.blob();
  throw new Refused(response.status, (await response.json().catch(() => null))?.error ?? response.statusText);
}

/** A change, at one of BookKeeper's own paths. */
export function change(method, path, query, body) {
  return requestInSession(method, `/api/v1${path}`, { query, body });
}
