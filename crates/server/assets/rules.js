// The rules in force: what they decide, by frames, and what they say, asked for when they change.

import { ask } from "/dashboard/ask.js";
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

/** The version whose words are shown. */
let shown;
let asking = false;

/** Shows what a frame tells of the rules; `before` is the frame before it, if there was one. */
export function rules(frame, before) {
  const now = frame.rules;
  byId("rules-card").hidden = !now;
  byId("rules-problem").hidden = !now?.problem;
  put(byId("rules-problem"), now?.problem ? `The files cannot be used, and the rules stay as they are. ${now.problem}` : "");
  if (!now) {
    put(byId("rules-told"), "None are in force: requests name their policies.");
    put(byId("rules-age"), "");
    return;
  }
  put(byId("rules-told"), `Version ${now.version} is in force: ${several(now.count, "rule")}.`);
  const ago = Math.max(0, frame.at_us - now.at_us);
  const again = `${now.reloads ? `reloaded ${times(now.reloads)}` : "never reloaded"}${now.failed ? `, ${times(now.failed)} in vain` : ""}`;
  put(byId("rules-age"), `Read ${span(ago)} ago, ${again}.`);
  table(now, frame, before);
  // Behind the same number there may be others, where the server was started anew.
  if ((shown !== now.version || !before) && !asking) say();
}

const times = (number) => (number === 1 ? "once" : `${count(number)} times`);

/** A row for each rule, in the order of their names where none decides more than another. */
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
    ? "None has decided anything yet."
    : names > decisions.length
      ? `The ${count(decisions.length)} of ${count(names)} that decided most since somebody looks.`
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

/** Asks what the rules say, and shows it. */
async function say() {
  asking = true;
  try {
    const said = await (await ask("/dashboard/rules")).json();
    shown = said.version;
    const parts = said.rules.map(({ title, lines }) => part(title, lines));
    if (said.count > said.rules.length) parts.push(made("p", `and ${count(said.count - said.rules.length)} more`));
    if (said.named) parts.push(part("policies by name", said.policies.map(({ name, text }) => [name, text])));
    if (said.named > said.policies.length) parts.push(made("p", `and ${count(said.named - said.policies.length)} more`));
    byId("said-list").replaceChildren(...parts);
  } catch {
    // The next frame asks again.
  }
  asking = false;
}

function part(title, lines) {
  const place = made("div");
  const list = made("dl");
  list.className = "said";
  for (const [label, text] of lines) list.append(made("dt", label), made("dd", text));
  place.append(made("h4", title), list);
  return place;
}
