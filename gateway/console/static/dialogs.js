// The three questions that the console asks: the token, "are you sure?", and nothing (it tells what went wrong).

import { change, isLoggedIn, login } from "./api.js";
import { h } from "./dom.js";

/** Shows a dialog made by `build(close)`; gives what `close` was given, null for Escape. */
export function ask(title, build) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": title });
    const finish = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    dialog.append(h("h2", null, title), build(finish));
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      finish(null);
    });
    // Browsers let a second Escape close it in any case.
    dialog.addEventListener("close", () => finish(null));
    document.body.append(dialog);
    dialog.showModal();
  });
}

function buttons(finish, yes, kind) {
  return h(
    "div",
    { class: "buttons" },
    h("button", { type: "button", onclick: () => finish(null) }, "Cancel"),
    h("button", { type: "submit", class: kind }, yes),
  );
}

/** A form that logs in; `done` is called when it has. `more` stands below the field. */
export function loginForm(text, done, more) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "Token" });
  const problem = h("p", { class: "problem", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await login(input.value.trim());
    } catch (error) {
      problem.textContent = error.status === 401 ? "That is not a token of this server." : error.message;
      input.select();
      return;
    }
    done();
  };
  return h("form", { class: "login", onsubmit: submit }, h("p", null, text), problem, input, more);
}

/** In place of what is shown with the token only: why, and the way to it. */
export function locked(what) {
  const unlock = async () => {
    if (await askToken()) window.dispatchEvent(new HashChangeEvent("hashchange"));
  };
  return h("div", { class: "empty" }, h("p", null, `${what} is shown with the token only.`), h("button", { class: "primary", onclick: unlock }, "Log in"));
}

/** Asks for a token; true when somebody is logged in now. */
export async function askToken() {
  const text = "This server shows entries and takes changes for those only who have a token. It is given to the server once; " +
    "the browser keeps a session instead, until you log out or half an hour after its last use.";
  const answer = await ask("Token", (finish) => loginForm(text, () => finish(true), buttons(finish, "Use it", "primary")));
  return answer === true;
}

/** Asks before something is done. With `word`, it has to be typed. */
export async function confirm(title, text, yes, { word, danger } = {}) {
  const answer = await ask(title, (finish) => {
    const input = word ? h("input", { autocomplete: "off", required: true, "aria-label": `Type ${word}` }) : null;
    const problem = h("p", { class: "problem", role: "alert" });
    const submit = (event) => {
      event.preventDefault();
      if (input && input.value.trim() !== word) problem.textContent = `That is not ${word}.`;
      else finish(true);
    };
    return h(
      "form",
      { onsubmit: submit },
      h("p", null, text),
      word ? h("p", null, "Type ", h("code", null, word), " to go on:") : null,
      input,
      problem,
      buttons(finish, yes, danger ? "danger" : "primary"),
    );
  });
  return answer === true;
}

/** Asks for a text before something is done; null where nobody gives one. */
export function askText(title, text, label, yes, { value = "", danger } = {}) {
  return ask(title, (finish) => {
    const input = h("input", { autocomplete: "off", required: true, "aria-label": label, value });
    const submit = (event) => {
      event.preventDefault();
      finish(input.value.trim());
    };
    return h("form", { onsubmit: submit }, h("p", null, text), input, buttons(finish, yes, danger ? "danger" : "primary"));
  });
}

export function tell(title, text) {
  return ask(title, (finish) => {
    const submit = (event) => {
      event.preventDefault();
      finish(true);
    };
    const button = h("button", { type: "submit", class: "primary", autofocus: true }, "Close");
    return h("form", { onsubmit: submit }, h("p", null, text), h("div", { class: "buttons" }, button));
  });
}

/** Whether a change can be tried: asks for the token where one is needed. Where not, the person was told. */
export async function mayChange(needs) {
  if (needs === "off") {
    await tell("Changes are off", "No token is configured and this server can be reached from other machines: set its http_token_file.");
    return false;
  }
  return needs !== "token" || isLoggedIn() || askToken();
}

/** Carries out a change, with the token where one is needed. True when it is done; otherwise the person was told. */
export async function carryOut(needs, method, path, query, body) {
  if (!(await mayChange(needs))) return false;
  for (;;) {
    try {
      await change(method, path, query, body);
      return true;
    } catch (error) {
      if (error.status !== 401) {
        await tell("That did not work", error.message);
        return false;
      }
      if (!(await askToken())) return false;
    }
  }
}
