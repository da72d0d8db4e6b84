// The frame of the console: which view is shown, who is asked how often, and the banner when something is wrong.

import { get, hasSession, isLoggedIn, logout, principal, recall } from "./api.js";
import { autoRecoveryView } from "./autorecovery.js";
import { bookieView } from "./bookie.js";
import { clusterView } from "./cluster.js";
import { collectionView } from "./collection.js";
import { askToken, loginForm, tell } from "./dialogs.js";
import { h, replace } from "./dom.js";
import { ledgerView } from "./ledger.js";
import { ledgersView } from "./ledgers.js";
import { ratesView } from "./rates.js";
import { parsed } from "./routes.js";
import { streamView, streamsView } from "./streams.js";

const CLUSTER_MS = 4000;

const VIEWS = [
  { name: "cluster", title: "Cluster", view: clusterView },
  { name: "ledgers", title: "Ledgers", view: ledgersView },
  { name: "rates", title: "Rates", view: ratesView },
  { name: "collection", title: "Garbage collection", view: collectionView },
  { name: "autorecovery", title: "Auto-recovery", view: autoRecoveryView },
  { name: "streams", title: "Streams", view: streamsView },
];
const HIDDEN = [
  { name: "ledger", title: "Ledger", view: ledgerView, under: "ledgers" },
  { name: "stream", title: "Stream", view: streamView, under: "streams" },
  { name: "bookie", title: "Bookie", view: bookieView, under: "cluster" },
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const banner = document.getElementById("banner");
const serverPlace = document.getElementById("server");

let current = null;
let cluster = null;
// What was asked for earlier is not shown after what was asked for later.
let clusterAsked = 0;
let clusterShown = 0;
let bannerShown = "";
let loginNeeded = false;

function navigate() {
  current?.aborter.abort();
  const { name, rest, query } = parsed();
  const chosen = [...VIEWS, ...HIDDEN].find((each) => each.name === name);
  const aborter = new AbortController();
  current = { aborter, listeners: [] };
  drawNav(chosen?.under ?? chosen?.name);
  document.title = `${chosen?.title ?? "Nothing here"}${rest.length ? ` ${rest[0]}` : ""} · Bookgate`;
  const root = h("div", { class: `view ${name}` });
  main.replaceChildren(root);
  window.scrollTo(0, 0);
  if (!chosen) {
    root.append(h("p", { class: "empty" }, "There is nothing here. ", h("a", { href: "#/cluster" }, "To the cluster")));
    return;
  }
  const mine = current;
  const context = {
    rest,
    query,
    signal: aborter.signal,
    cluster: () => cluster,
    /** Calls `listener` now, if the cluster is known, and whenever it is told anew. */
    onCluster(listener) {
      mine.listeners.push(listener);
      if (cluster) listener(cluster);
    },
    refreshCluster,
    /** Calls `work` now and then, until the view is left or it gives true; a hidden page asks for nothing. */
    every(ms, work) {
      const round = async () => {
        if (aborter.signal.aborted) return;
        if (!document.hidden && (await work()) === true) return;
        if (!aborter.signal.aborted) setTimeout(round, ms);
      };
      round();
    },
    /** What a view shows when it could not be told. */
    failed(place, error) {
      if (error.name === "AbortError") return;
      replace(place, h("p", { class: "problem", role: "alert" }, error.message));
    },
  };
  chosen.view(root, context);
}

function drawNav(active) {
  replace(
    nav,
    VIEWS.map(({ name, title }) =>
      h("a", { href: `#/${name}`, "data-key": name, "aria-current": name === active ? "page" : null }, title),
    ),
  );
}

function drawServer() {
  const { server } = cluster;
  const lock =
    server.changes === "token" && (hasSession() || !isLoggedIn())
      ? h("button", { class: "small", "data-key": "lock", onclick: lockOrUnlock }, isLoggedIn() ? "Log out" : "Log in")
      : null;
  replace(
    serverPlace,
    h("span", { class: "at", title: `served at ${location.host}` }, server.kind === "gateway" ? `gateway ${location.host}` : server.name),
    h("span", { class: "version" }, server.version.replace("bookgate/", "")),
    server.state === "draining" ? h("span", { class: "chip warn" }, "draining") : null,
    principal() ? h("span", { class: "principal", title: "who is logged in" }, principal()) : null,
    lock,
  );
}

async function lockOrUnlock() {
  if (isLoggedIn() ? await isLoggedOut() : await askToken()) await begin();
}

/** Logs out; false where that failed, which the person was told. */
async function isLoggedOut() {
  try {
    await logout();
    return true;
  } catch (error) {
    await tell("That did not work", `You may still be logged in: ${error.message}`);
    return false;
  }
}

/** The page of a server that shows nothing to those whom it does not know. */
function showLogin() {
  current?.aborter.abort();
  cluster = null;
  replace(nav);
  replace(serverPlace);
  drawBanner([]);
  document.title = "Log in · Bookgate";
  const button = h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Log in"));
  const text = "Give a token of this cluster. The browser keeps a session instead of it, until you log out or half an hour after its last use.";
  main.replaceChildren(h("div", { class: "view" }, h("h1", null, "Log in"), loginForm(text, begin, button)));
  main.querySelector("input").focus();
}

/** Shows what there is to see for whoever is logged in now. */
async function begin() {
  const isShowingLogin = loginNeeded;
  await refreshCluster();
  if (!isShowingLogin && !loginNeeded) navigate();
}

function drawBanner(problems) {
  const shown = JSON.stringify(problems);
  if (shown === bannerShown) return;
  bannerShown = shown;
  const lines = problems.map((problem) =>
    h(
      "li",
      { class: problem.severity },
      h("b", null, problem.subject),
      ` ${problem.text}`,
      problem.advice ? h("span", { class: "advice" }, problem.advice) : null,
    ),
  );
  const worst = problems.some((problem) => problem.severity === "error") ? "error" : "warning";
  const list =
    lines.length > 3
      ? [h("ul", null, lines.slice(0, 3)), h("details", null, h("summary", null, `${lines.length - 3} more`), h("ul", null, lines.slice(3)))]
      : [h("ul", null, lines)];
  replace(banner, lines.length ? h("div", { class: `banner ${worst}` }, list) : null);
}

async function refreshCluster() {
  clusterAsked += 1;
  const mine = clusterAsked;
  try {
    const seen = await get("/cluster");
    // Another tab may have logged in.
    if (loginNeeded && !isLoggedIn()) await recall().catch(() => {});
    if (mine < clusterShown) return;
    clusterShown = mine;
    cluster = seen;
    drawBanner(cluster.problems);
    drawServer();
    if (!loginNeeded) current?.listeners.forEach((listener) => listener(cluster));
    else {
      loginNeeded = false;
      navigate();
    }
  } catch (error) {
    if (mine < clusterShown) return;
    if (error.status === 401) {
      // Once: what is being typed must stay.
      if (!loginNeeded) showLogin();
      loginNeeded = true;
      return;
    }
    const text = error.status === 0 ? "does not answer; what is shown is what it said last" : error.message;
    drawBanner([{ severity: "error", subject: "this server", text }]);
  }
}

async function followCluster() {
  if (!document.hidden) await refreshCluster();
  setTimeout(followCluster, CLUSTER_MS);
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key >= "1" && event.key <= String(VIEWS.length)) {
    location.hash = `#/${VIEWS[Number(event.key) - 1].name}`;
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => {
  if (!loginNeeded) navigate();
});
try {
  await recall();
} catch {
  // Who it is may be asked later; what is shown says what is wrong.
}
await begin();
setTimeout(followCluster, CLUSTER_MS);
