// How payloads are shown: as text, hex or JSON by the browser; Avro and Protobuf are decoded by the server, with a schema
// file that whoever looks at them chooses. It stays in the page's memory. What was decoded counts for the choice that it
// was decoded by, and no other.

import { work } from "./api.js";
import { h } from "./dom.js";
import { base64Of } from "./files.js";
import { asHex, asText, fromBase64, hexDump } from "./format.js";
import { laidOut } from "./json_text.js";
import { Turns } from "./turns.js";

export const SHOWS = [
  ["text", "Text"],
  ["hex", "Hex"],
  ["json", "JSON"],
  ["avro", "Avro"],
  ["protobuf", "Protobuf"],
];

// Kept over pages of entries, so that a schema is chosen once. A choice is another object, never a changed one.
let chosen = { avro: null, protobuf: null, message: "", skip: 0 };

export class Decoding {
  constructor(show, signal, changed) {
    Object.assign(this, { signal, changed });
    this.show = SHOWS.some(([name]) => name === show) ? show : "text";
    this.problem = null;
    this.picks = new Turns();
  }

  choose(show) {
    this.show = show;
    this.changed();
  }

  /** Takes the place of a part of what was chosen. */
  chooseAnew(part) {
    chosen = { ...chosen, ...part };
    this.changed();
  }

  heading() {
    const [, name] = SHOWS.find(([show]) => show === this.show);
    return this.show === "hex" ? "Payload in hex" : this.show === "text" ? "Payload as text" : `Payload, ${name}`;
  }

  get needsSchema() {
    return this.show === "avro" || this.show === "protobuf";
  }

  /** Fills `decoded` of entries that can be; what is shown without it says why. */
  async decode(entries) {
    this.problem = null;
    if (!this.needsSchema || !chosen[this.show]) return;
    const [as, by] = [this.show, chosen];
    const isChosen = () => as === this.show && by === chosen;
    const whole = entries.filter((entry) => entry.payload !== undefined && fromBase64(entry.payload).length === entry.size);
    for (let start = 0; start < whole.length; start += 100) {
      const some = whole.slice(start, start + 100);
      const body = { format: as, schema: by[as].content, message: by.message, skip: by.skip, payloads: some.map((entry) => entry.payload) };
      try {
        const { decoded, problem } = await work("/decode", body, this.signal);
        if (!isChosen()) return;
        this.problem = problem;
        if (problem) return;
        some.forEach((entry, index) => (entry.decoded = { as, by, ...decoded[index] }));
      } catch (error) {
        if (error.name === "AbortError") throw error;
        if (isChosen()) this.problem = error.message;
        return;
      }
    }
  }

  /** What is chosen beside the kind: a schema file, and for Protobuf the message. */
  tools() {
    if (!this.needsSchema) return null;
    const kind = this.show;
    const file = h("input", { type: "file", "aria-label": "Schema file", accept: kind === "avro" ? ".avsc,.json" : ".pb,.desc,.binpb,.protoset" });
    file.addEventListener("change", async () => {
      const [picked] = file.files;
      if (!picked) return;
      const isLatest = this.picks.begin();
      const content = kind === "avro" ? await picked.text() : await base64Of(picked);
      if (isLatest()) this.chooseAnew({ [kind]: { name: picked.name, content } });
    });
    const message = h("input", { placeholder: "package.Message", value: chosen.message, "aria-label": "Message type" });
    message.addEventListener("change", () => this.chooseAnew({ message: message.value.trim() }));
    const skip = h("select", { "aria-label": "In front of each payload", onchange: (event) => this.chooseAnew({ skip: Number(event.target.value) }) },
      [[0, "nothing in front"], [5, "5 bytes of a schema registry in front"]].map(([value, text]) => h("option", { value, selected: chosen.skip === value }, text)));
    return h(
      "span",
      { class: "schema" },
      h("label", null, chosen[kind] ? `Schema: ${chosen[kind].name}` : kind === "avro" ? "Schema (.avsc)" : "Descriptors (protoc --include_imports --descriptor_set_out)", file),
      kind === "protobuf" ? h("label", null, "Message", message) : null,
      skip,
      this.problem ? h("span", { class: "problem", role: "alert" }, this.problem) : null,
    );
  }

  /** A payload in a line. */
  line(entry, content, most) {
    if (this.show === "hex") return asHex(content.subarray(0, most));
    const value = this.value(entry, content);
    return value === undefined ? asText(content) : value.problem ? `(${value.problem}) ${asText(content)}` : laidOut(value.json);
  }

  /** A payload over as many lines as it takes. */
  whole(entry, content) {
    if (this.show === "hex") return hexDump(content);
    const value = this.value(entry, content);
    if (value === undefined) return asText(content, true);
    return value.problem ? `(${value.problem})\n\n${hexDump(content)}` : laidOut(value.json, "  ");
  }

  /** `{json}`, which is text, or `{problem}`; undefined where text is shown. */
  value(entry, content) {
    if (this.show === "text") return undefined;
    if (this.show === "json") {
      try {
        const json = new TextDecoder("utf-8", { fatal: true }).decode(content);
        JSON.parse(json);
        return { json };
      } catch {
        return { problem: content.length < entry.size ? "too long to be shown as JSON here" : "no JSON" };
      }
    }
    const { decoded } = entry;
    if (decoded?.as === this.show && decoded.by === chosen) return decoded.problem ? decoded : { json: JSON.stringify(decoded.value) };
    if (!chosen[this.show]) return { problem: "choose a schema file" };
    return { problem: content.length < entry.size ? "open it to decode it" : (this.problem ?? "not decoded") };
  }
}
