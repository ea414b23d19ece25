// One key: looked up, then refreshed with each frame until it has recovered; reset and blocked on request.

import { request } from "/dashboard/request.js";
import { level } from "/dashboard/live.js";
import { count, several, span } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
const dialog = byId("confirm-dialog");

/** The key that is shown: what to ask, and its name. */
let looked;
let refreshing = false;
/** Whether the server lets a viewer reset and block keys. */
let actions = false;

/** What the server says of a key, as a sentence. */
function sentence(name, result) {
  const { found, next, reset_after_us, blocked_us } = result;
  const recovered = found ? `fully recovered in ${span(reset_after_us)}` : "";
  if (blocked_us) return `${name} is blocked: can try again in ${span(blocked_us)}${found ? `, ${recovered}` : ""}.`;
  if (!found) return `${name} is unused or fully recovered: no limit applies now.`;
  if (!next) return `${name}: ${recovered}.`;
  if (next.allowed) return `${name} is allowed: ${several(next.remaining, "request")} left, ${recovered}.`;
  const retry = next.retry_after_us === null ? "no request can succeed" : `can try again in ${span(next.retry_after_us)}`;
  return `${name} is denied by ${next.limit}: ${retry}, ${recovered}.`;
}

/** The open holds of a key, as a sentence. */
function heldBy({ count: all, units, first, first_expires_after_us }) {
  const firstHold = `the first of them (${first}) expires in ${span(first_expires_after_us)}`;
  return ` ${several(units, "unit")} held by ${several(all, "hold")}: ${firstHold}.`;
}

async function lookUp({ query, name }, aloud) {
  const result = await (await request("/dashboard/key", query)).json();
  const summary = sentence(`${name}${result.mask ? ` (${result.mask})` : ""}`, result);
  const text = result.holds ? summary + heldBy(result.holds) : summary;
  byId("look-result").textContent = text;
  // A screen reader reads it once, not every second.
  if (aloud || !result.found) byId("look-announcement").textContent = text;
  byId("look-limits").replaceChildren(...(result.limits ?? []).map(level));
  return result.found || Boolean(result.blocked_us);
}

async function start(query, name) {
  const mine = { query, name, live: false };
  looked = mine;
  try {
    mine.live = await lookUp(mine, true);
  } catch (error) {
    byId("look-result").textContent = error.message;
    byId("look-limits").replaceChildren();
    looked = undefined;
  }
  byId("look-actions").hidden = !(actions && looked);
}

/** Takes in a frame: the card of the key counts down with it. */
export async function seen(frame) {
  actions = frame.actions;
  byId("actions-note").textContent = actions ? "" : "To reset or block keys here, start the server with --http-token.";
  byId("look-actions").hidden = !(actions && looked);
  blocks(frame.blocks);
  const mine = looked;
  if (!mine?.live || refreshing) return;
  refreshing = true;
  try {
    const live = await lookUp(mine, false);
    mine.live = live;
  } catch {
    // The next frame tries again.
  }
  refreshing = false;
}

/** A row for each blocked key. */
function blocks({ count: all, shown }) {
  byId("blocks").hidden = all === 0;
  const body = byId("blocked-keys").tBodies[0];
  while (body.rows.length > shown.length) body.lastChild.remove();
  shown.forEach(({ id, key, remaining_us }, index) => {
    if (!body.rows[index]) {
      const row = body.insertRow();
      const name = document.createElement("th");
      name.scope = "row";
      const [left, action] = [document.createElement("td"), document.createElement("td")];
      left.className = action.className = "number";
      const button = document.createElement("button");
      button.type = "button";
      button.className = "plain";
      button.textContent = "Unblock…";
      action.append(button);
      row.append(name, left, action);
    }
    const [name, left, action] = body.rows[index].cells;
    name.textContent = key || "(empty)";
    left.textContent = span(remaining_us);
    action.firstChild.dataset.id = id;
    action.firstChild.dataset.key = key;
    action.firstChild.setAttribute("aria-label", `Unblock ${key}`);
  });
  byId("blocks-note").textContent = all > shown.length ? `${count(all - shown.length)} more expire later.` : "";
}

/** Resolves the confirmation that the dialog asks for. */
let answer;

/** Asks for confirmation: the chosen duration in seconds, or `undefined` if it is refused. */
function confirm({ title, name, text, action, timed }) {
  byId("confirm-title").textContent = title;
  byId("confirm-key").textContent = name;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = action;
  byId("confirm-duration").hidden = !timed;
  dialog.showModal();
  return new Promise((resolve) => (answer = resolve));
}

byId("confirm-form").addEventListener("submit", ({ submitter }) => {
  answer?.(submitter?.value === "yes" ? Number(byId("duration").value) : undefined);
  answer = undefined;
});
// By the Escape key. The event may come late, when the dialog already shows another question.
dialog.addEventListener("close", () => {
  if (dialog.open) return;
  answer?.(undefined);
  answer = undefined;
});

async function act(question, path, body) {
  const seconds = await confirm(question);
  if (seconds === undefined) return;
  try {
    await request(path, body(seconds));
    if (looked) await start(looked.query, looked.name);
  } catch (error) {
    byId("look-result").textContent = error.message;
    byId("look-announcement").textContent = error.message;
  }
}

byId("reset-key").addEventListener("click", () => {
  const { query, name } = looked;
  const text = "The key gets its full quota back at once.";
  act({ title: "Reset key?", name, text, action: "Reset" }, "/admin/reset", () => query);
});
byId("block-key").addEventListener("click", () => {
  const { query, name } = looked;
  const text = "This server denies every request of this key until the block expires.";
  act({ title: "Block key?", name, text, action: "Block", timed: true }, "/admin/block",
    (seconds) => ({ ...query, duration_us: seconds * 1e6 }));
});
byId("blocked-keys").addEventListener("click", ({ target }) => {
  if (!(target instanceof HTMLButtonElement)) return;
  const text = "Its limits apply again at once.";
  act({ title: "Unblock key?", name: target.dataset.key, text, action: "Unblock" }, "/admin/unblock",
    () => ({ id: Number(target.dataset.id) }));
});

byId("look-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("look-key").value;
  start({ key }, key || "(empty)");
});

/** Looks up the key of a button in a list. */
export function lookUpKey({ dataset: { key, base64 } }) {
  byId("look-key").value = base64 ? "" : key;
  start(base64 ? { key_base64: base64 } : { key }, key || "(empty)");
  byId("look").scrollIntoView({ block: "nearest" });
}

byId("hot").addEventListener("click", ({ target }) => {
  if (target instanceof HTMLButtonElement) lookUpKey(target);
});
