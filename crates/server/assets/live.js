// What a frame says, put where it belongs. Elements are kept and changed, so that focus stays.

import { bytes, count, percent, rate, several, span } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

/** What happened between two frames, a second. Nothing where the server has started anew. */
export function between(before, frame) {
  const seconds = (frame.at_us - before.at_us) / 1e6;
  const [allowed, denied] = [frame.allowed - before.allowed, frame.denied - before.denied];
  if (seconds <= 0 || allowed < 0 || denied < 0) return undefined;
  return { allowed: allowed / seconds, denied: denied / seconds };
}

/** Shows a frame; `rates` is what `between` told, if there was one before. */
export function show(frame, rates) {
  if (rates) {
    const all = rates.allowed + rates.denied;
    put(byId("rate"), rate(all));
    put(byId("allowed"), rate(rates.allowed));
    put(byId("denied"), rate(rates.denied));
    put(byId("share"), all ? `a second, ${percent(rates.denied / all)}` : "a second");
  }
  const { latency, store } = frame;
  put(byId("p50"), latency ? span(latency.p50_us) : "–");
  put(byId("p99"), `99 of 100 ${latency ? `in ${span(latency.p99_us)}` : "–"}`);
  if (store.kind === "memory") {
    put(byId("live-keys"), count(store.keys));
    put(byId("live-bytes"), `${bytes(store.bytes)} of ${bytes(store.max_bytes)}`);
  } else {
    put(byId("live-keys"), "–");
    put(byId("live-bytes"), "kept in the store elsewhere");
  }
  hot(frame.hot);
  facts("store", storeFacts(store, frame));
  facts("process", processFacts(frame));
  put(byId("about"), `Sluicegate ${frame.version}. Times are of the clock of this browser; numbers are of the server.`);
}

function hot({ keys, every, asked, denied }) {
  byId("hot").hidden = keys === "off";
  const kept = {
    shown: "Lately, some sixteen seconds. ",
    masked: "Lately, some sixteen seconds; keys are masked by option. ",
    off: "Which keys are asked about is not noted, by option.",
  }[keys];
  const sampled = every > 1 ? `One decision in ${count(every)} is looked at. ` : "Each decision is looked at. ";
  const error = "A key was seen as often as told, give or take ±.";
  put(byId("keys-note"), keys === "off" ? kept : kept + sampled + error);
  rows(byId("asked"), asked, "Nothing is asked.");
  rows(byId("refused"), denied, "Nothing is denied.");
}

/** Ten rows, of which those without a key are empty: the page below stands still. */
function rows(table, keys, none) {
  const body = table.tBodies[0];
  while (body.rows.length < 10) body.append(row());
  const most = keys[0]?.rate || 1;
  [...body.rows].forEach((row, index) => {
    const key = keys[index];
    const [place, often, error] = row.cells;
    const button = place.querySelector("button");
    row.classList.toggle("none", !key);
    button.hidden = !key || Boolean(key.partly);
    const tag = place.querySelector(".tag");
    tag.hidden = Boolean(key) && !key.partly;
    put(tag, key ? key.key : index === 0 ? none : "");
    put(button, key?.key || (key ? "(empty)" : ""));
    button.dataset.key = key?.key ?? "";
    button.dataset.base64 = key?.key_base64 ?? "";
    button.title = key?.key ?? "";
    place.firstChild.style.setProperty("--part", key ? key.rate / most : 0);
    put(often, key ? rate(key.rate) : "");
    put(error, key ? (key.over + key.noise ? rate(key.over + key.noise) : "0") : "");
  });
}

function row() {
  const row = document.createElement("tr");
  row.innerHTML = '<td><div class="key"><button type="button" hidden></button><span class="tag"></span></div></td><td class="number"></td><td class="number"></td>';
  return row;
}

/** Pairs of a name and a text; a third, `true`, is what somebody should look at. */
function facts(id, pairs) {
  const list = byId(id);
  while (list.children.length > pairs.length * 2) list.lastChild.remove();
  pairs.forEach(([name, text, bad], index) => {
    if (!list.children[index * 2]) list.append(document.createElement("dt"), document.createElement("dd"));
    const [term, told] = [list.children[index * 2], list.children[index * 2 + 1]];
    put(term, name);
    put(told, text);
    told.classList.toggle("bad", Boolean(bad));
  });
}

function storeFacts(store, frame) {
  if (store.kind === "memory") {
    const full = store.bytes / store.max_bytes;
    const file = store.snapshots;
    return [
      ["Kept", "in this process"],
      ["Room taken", percent(full), full > 0.9],
      [`Table full (${store.when_full})`, count(store.table_full), store.table_full > 0],
      ["State file", file ? (file.failing ? "cannot be written" : file.at_us ? `written ${span(Math.max(0, frame.at_us - file.at_us))} ago` : "not written yet") : "none", file?.failing],
    ];
  }
  const servers = store.servers.map(({ place, connected, breaker_open }) => [
    place,
    breaker_open ? "circuit breaker open" : connected ? "connected" : "not connected",
    breaker_open || !connected,
  ]);
  const counts = store.counts.filter(([, number]) => number > 0);
  return [
    ["Kept", "in Redis or Valkey"],
    ["While it is away", store.on_error],
    ...servers,
    ...counts.map(([name, number]) => [name.replaceAll("_", " "), count(number)]),
  ];
}

function processFacts(frame) {
  const faces = frame.faces.filter((face) => face.allowed + face.denied > 0);
  return [
    ["Up for", span(frame.uptime_us)],
    ["Clients", `${count(frame.clients)} of ${count(frame.max_clients)}`],
    ["Waiting for their turn", count(frame.waiting)],
    ["Errors told", count(frame.errors)],
    ["Decisions so far", count(frame.allowed + frame.denied)],
    ...faces.map((face) => [`by ${face.name}`, count(face.allowed + face.denied)]),
    ["Looking at this", several(frame.viewers, "viewer")],
  ];
}

/** One limit of a key: what is used of it, and when nothing is. */
export function level({ limit, capacity, used, remaining, reset_after_us }) {
  const element = document.createElement("div");
  element.className = "level";
  const [words, bar] = [document.createElement("p"), document.createElement("div")];
  const [name, told] = [document.createElement("code"), document.createElement("span")];
  name.textContent = limit;
  told.textContent = `${count(used)} of ${count(capacity)} used, ${count(remaining)} left, free again in ${span(reset_after_us)}`;
  words.append(name, told);
  bar.className = remaining > 0 ? "bar" : "bar full";
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-valuemin", 0);
  bar.setAttribute("aria-valuemax", capacity);
  bar.setAttribute("aria-valuenow", Math.min(used, capacity));
  bar.setAttribute("aria-label", `${limit}, used`);
  bar.style.setProperty("--part", Math.min(1, used / capacity));
  element.append(words, bar);
  return element;
}
