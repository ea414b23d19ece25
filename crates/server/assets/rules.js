// Active rules: their decisions come with each frame, their definitions are fetched when they change.

import { request } from "/dashboard/request.js";
import { count, rate, several, span } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
const made = (name, text) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return element;
};

/** The version whose definitions are shown. */
let shown;
let isLoading = false;

/** Shows the rules of a frame; `before` is the previous frame, if there is one. */
export function rules(frame, before) {
  const now = frame.rules;
  byId("rules-card").hidden = !now;
  byId("rules-problem").hidden = !now?.problem;
  put(byId("rules-problem"), now?.problem ? `The rules files are invalid; the previous rules stay active. ${now.problem}` : "");
  if (!now) {
    put(byId("rules-status"), "No rules file is loaded: requests name their policies.");
    put(byId("rules-age"), "");
    return;
  }
  put(byId("rules-status"), `Version ${now.version} is active: ${several(now.count, "rule")}.`);
  const ago = Math.max(0, frame.at_us - now.at_us);
  const again = `${now.reloads ? `reloaded ${times(now.reloads)}` : "never reloaded"}${now.failed ? `, ${several(now.failed, "failed reload")}` : ""}`;
  put(byId("rules-age"), `Loaded ${span(ago)} ago, ${again}.`);
  table(now, frame, before);
  // After a restart of the server the same version number may identify other rules.
  if ((shown !== now.version || !before) && !isLoading) loadRules();
}

const times = (number) => (number === 1 ? "once" : `${count(number)} times`);

/** A row for each rule, the one with most decisions first. */
function table({ decisions, names }, frame, before) {
  const body = byId("decided").tBodies[0];
  while (body.rows.length > decisions.length) body.lastChild.remove();
  const seconds = before ? (frame.at_us - before.at_us) / 1e6 : 0;
  const known = new Map(before?.rules?.decisions.map((it) => [it.rule, it]));
  decisions.forEach((it, index) => {
    if (!body.rows[index]) body.append(row());
    const [name, ...cells] = body.rows[index].cells;
    const old = known.get(it.rule);
    const a = (part) => (old && seconds > 0 ? rate(Math.max(0, part(it) - part(old)) / seconds) : "–");
    put(name, it.rule);
    put(cells[0], a((it) => it.allowed + it.unlimited));
    put(cells[1], a((it) => it.denied + it.blocked));
    put(cells[2], a((it) => it.shadow_denied));
    put(cells[3], count(it.allowed + it.unlimited + it.denied + it.blocked + it.shadow_denied));
  });
  const note = names === 0
    ? "No rule has decided a request yet."
    : names > decisions.length
      ? `The ${count(decisions.length)} busiest of ${count(names)} since the dashboard was opened.`
      : "";
  put(byId("decided-note"), note);
}

function row() {
  const row = made("tr");
  const name = made("th");
  name.scope = "row";
  row.append(name, ...Array.from({ length: 4 }, () => made("td")));
  for (const cell of [...row.cells].slice(1)) cell.className = "number";
  return row;
}

/** Fetches the definitions of the rules and shows them. */
async function loadRules() {
  isLoading = true;
  try {
    const reply = await (await request("/dashboard/rules")).json();
    shown = reply.version;
    const parts = reply.rules.map(({ title, lines }) => part(title, lines));
    if (reply.count > reply.rules.length) parts.push(made("p", `and ${count(reply.count - reply.rules.length)} more`));
    if (reply.named) parts.push(part("named policies", reply.policies.map(({ name, text }) => [name, text])));
    if (reply.named > reply.policies.length) parts.push(made("p", `and ${count(reply.named - reply.policies.length)} more`));
    byId("active-rules-list").replaceChildren(...parts);
  } catch {
    // The next frame tries again.
  }
  isLoading = false;
}

function part(title, lines) {
  const place = made("div");
  const list = made("dl");
  list.className = "rule-lines";
  for (const [label, text] of lines) list.append(made("dt", label), made("dd", text));
  place.append(made("h4", title), list);
  return place;
}
