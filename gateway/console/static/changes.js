// Changes that more than one view offers.

import { carryOut, confirm } from "./dialogs.js";
import { h } from "./dom.js";

/** The button that makes a bookie read-only, or writable; null where that is not to be had from here. */
export function setReadOnly(bookie, cluster, context) {
  const own = cluster.server.kind === "bookie" && cluster.server.name === bookie.id;
  const reached = own || (cluster.server.features.includes("peers") && bookie.console);
  if (bookie.state === "unavailable" || !reached) return null;
  const wanted = bookie.state === "writable";
  const word = wanted ? "Set read-only" : "Set writable";
  const text = wanted
    ? "New ledgers will go to other bookies, and ledgers that are written now will change their ensembles. It goes on answering reads."
    : "It takes new entries again, as long as its disks have room.";
  const act = async () => {
    if (!(await confirm(`${word}: ${bookie.id}`, text, word))) return;
    const [path, query] = own ? ["/bookie/state/readonly", {}] : ["/console/bookie/readonly", { bookie_id: bookie.id }];
    await carryOut(cluster.server.changes, "PUT", path, query, { readOnly: wanted });
    await context.refreshCluster();
  };
  return h("button", { class: "small", "data-key": `read-only ${bookie.id}`, onclick: act }, word);
}
