// Shows a frame. Elements are kept and updated, because replacing them would move the focus.

import { bytes, clock, count, percent, rate, several, span } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
const put = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

/** Decisions per second between two frames; nothing if the server restarted in between. */
export function between(before, frame) {
  const seconds = (frame.at_us - before.at_us) / 1e6;
  const [allowed, denied] = [frame.allowed - before.allowed, frame.denied - before.denied];
  if (seconds <= 0 || allowed < 0 || denied < 0) return undefined;
  return { allowed: allowed / seconds, denied: denied / seconds };
}

/** Without a connection, nothing is known of the current second. */
export function lost() {
  for (const id of ["rate", "allowed", "denied", "p50", "store-state", "store-detail"]) put(byId(id), "–");
  put(byId("share"), "per second");
  put(byId("p99"), "p99 –");
  byId("store-tile").classList.remove("bad");
  byId("store-problem").hidden = true;
}

/** Shows a frame; `rates` is the result of `between`, if there was a frame before. */
export function show(frame, rates) {
  if (rates) {
    const all = rates.allowed + rates.denied;
    put(byId("rate"), rate(all));
    put(byId("allowed"), rate(rates.allowed));
    put(byId("denied"), rate(rates.denied));
    put(byId("share"), all ? `per second, ${percent(rates.denied / all)}` : "per second");
  }
  const { latency, store } = frame;
  put(byId("p50"), latency ? span(latency.p50_us) : "–");
  put(byId("p99"), `p99 ${latency ? span(latency.p99_us) : "–"}`);
  tile(store);
  hot(frame);
  facts("store", storeFacts(store, frame));
  facts("process", processFacts(frame));
  put(byId("about"), `Sluicegate ${frame.version}. Clock times are in this browser's time zone.`);
}

/** The fifth tile: live keys, or the health of the store. Red if something is wrong. */
function tile(store) {
  const bad = store.kind === "memory" ? memoryTile(store) : redisTile(store);
  byId("store-tile").classList.toggle("bad", Boolean(bad));
  byId("store-problem").hidden = !bad;
  put(byId("store-problem"), bad || "");
}

function memoryTile(store) {
  put(byId("store-name"), "Live keys");
  put(byId("store-state"), count(store.keys));
  put(byId("store-detail"), `${bytes(store.bytes)} of ${bytes(store.max_bytes)}`);
  return store.snapshots?.failing ? "The state file cannot be written: a restart loses the changes since the last snapshot." : "";
}

const ON_ERROR = {
  deny: "Requests are denied (--on-error deny).",
  allow: "Requests are allowed unchecked (--on-error allow).",
  local: "This server applies the limits on its own (--on-error local).",
};

function redisTile(store) {
  const open = store.servers.filter((it) => it.breaker_open).length;
  const breaker = open ? `circuit breaker open on ${open} of ${several(store.servers.length, "node")}` : "circuit breaker closed";
  const most = (us) => (us === null ? "> 1 s" : `≤ ${span(us)}`);
  const latency = store.latency ? `p50 ${most(store.latency.p50_us)}, p99 ${most(store.latency.p99_us)}, ` : "";
  put(byId("store-name"), "Store");
  put(byId("store-state"), store.unavailable ? "down" : open ? "degraded" : "up");
  put(byId("store-detail"), `${latency}${breaker}`);
  if (store.unavailable) return `The store is unavailable: ${store.unavailable}. ${ON_ERROR[store.on_error]}`;
  return open ? `Part of the store is unavailable: ${breaker}. ${ON_ERROR[store.on_error]}` : "";
}

/** For how long samples of keys count, in microseconds. */
const SPAN = 16e6;

function hot({ at_us, hot: { keys, every, since_us, requested, denied } }) {
  byId("hot").hidden = keys === "off";
  const sampling = every > 1 ? `1 in ${count(every)} decisions sampled. Rates are estimates to ±.` : "No sampling. Rates are exact to ±.";
  const masked = keys === "masked" ? " Keys are masked (--dashboard masked)." : "";
  const isFull = at_us - since_us >= SPAN;
  const start = clock(since_us / 1e6);
  const since = isFull ? "Last ~16 s." : `Keys are recorded since ${start}, while a dashboard is open. Earlier requests are not listed.`;
  put(byId("keys-note"), keys === "off" ? "Hot keys are off (--dashboard no-keys)." : `${since} ${sampling}${masked}`);
  const then = isFull ? "in the last ~16 s" : `since ${start}`;
  rows(byId("denied-keys"), denied, `No denials ${then}.`);
  rows(byId("requested-keys"), requested, `No requests ${then}. Send some.`);
}

/** Whether the rate of a key is more than twice its error: otherwise it may as well be a rare key. */
const isCertain = ({ rate, over, noise }) => rate > 2 * (over + noise);

/** Ten rows, empty ones included: the page below does not move. */
function rows(table, sampled, nothing) {
  const keys = sampled.filter(isCertain);
  const none = sampled.length ? "No key is frequent enough for an estimate." : nothing;
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
    const by = place.querySelector(".by");
    put(by, reason(key));
    by.title = by.textContent;
    place.firstChild.style.setProperty("--part", key ? key.rate / most : 0);
    put(often, key ? rate(key.rate) : "");
    put(error, key ? (key.over + key.noise ? rate(key.over + key.noise) : "0") : "");
  });
}

/** Why a key is denied. */
function reason(key) {
  if (key?.blocked) return "blocked";
  const by = key?.denied_by;
  if (!by) return "";
  return by.rule ? `${by.rule}: ${by.limit}` : by.limit;
}

function row() {
  const row = document.createElement("tr");
  row.innerHTML = '<td><div class="key"><button type="button" hidden></button><span class="tag"></span><span class="by"></span></div></td><td class="number"></td><td class="number"></td>';
  return row;
}

/** Pairs of a name and a text; a third member, `true`, marks what needs attention. */
function facts(id, pairs) {
  const list = byId(id);
  while (list.children.length > pairs.length * 2) list.lastChild.remove();
  pairs.forEach(([name, text, bad], index) => {
    if (!list.children[index * 2]) list.append(document.createElement("dt"), document.createElement("dd"));
    const [term, detail] = [list.children[index * 2], list.children[index * 2 + 1]];
    put(term, name);
    put(detail, text);
    detail.classList.toggle("bad", Boolean(bad));
  });
}

function storeFacts(store, frame) {
  if (store.kind === "memory") {
    const full = store.bytes / store.max_bytes;
    const file = store.snapshots;
    return [
      ["State", "in this process"],
      ["Memory used", `${percent(full)} of ${bytes(store.max_bytes)}`, full > 0.9],
      [`New keys ${store.when_full === "deny" ? "denied" : "not limited"} (table full)`, count(store.table_full), store.table_full > 0],
      ["State file", file ? (file.failing ? "write failed" : file.at_us ? `written ${span(Math.max(0, frame.at_us - file.at_us))} ago` : "not written yet") : "none", file?.failing],
    ];
  }
  const servers = store.servers.map(({ node, connected, breaker_open }) => [
    node,
    breaker_open ? "circuit breaker open" : connected ? "connected" : "not connected",
    breaker_open || !connected,
  ]);
  const counts = store.counts.filter(([, number]) => number > 0);
  return [
    ["State", "in Redis or Valkey"],
    ["While unavailable (--on-error)", store.on_error],
    ...servers,
    ...counts.map(([name, number]) => [COUNTERS[name] ?? name.replaceAll("_", " "), count(number)]),
  ];
}

const COUNTERS = {
  store: "Decisions by the store",
  cache: "Decisions from the denial cache",
  lease: "Decisions from leases",
  fallback_deny: "Fallback decisions: denied",
  fallback_allow: "Fallback decisions: allowed",
  fallback_local: "Fallback decisions: local",
  timeouts: "Timeouts",
  unavailable: "Requests while unavailable",
  corrupt: "Keys with unreadable state",
  module: "Decisions by the module",
  scripts_sent: "Scripts sent",
  redirects: "Cluster redirects",
  connections: "Connections opened",
  breaker_opened: "Circuit breaker opened",
  lease_returned: "Lease units returned",
  lease_forfeited: "Lease units lost",
};

const PROTOCOLS = { resp: "RESP", http: "HTTP", grpc: "gRPC" };

function processFacts(frame) {
  const protocols = frame.protocols.filter((it) => it.allowed + it.denied > 0);
  return [
    ["Uptime", span(frame.uptime_us)],
    ["Connections", `${count(frame.clients)} of ${count(frame.max_clients)}`],
    ["Waiting requests", count(frame.waiting)],
    ["Error replies", count(frame.errors)],
    ["Decisions since start", count(frame.allowed + frame.denied)],
    ...protocols.map((it) => [`over ${PROTOCOLS[it.name] ?? it.name}`, count(it.allowed + it.denied)]),
    ["Dashboard viewers", count(frame.viewers)],
  ];
}

/** One limit of a key: its usage, and when it has fully recovered. */
export function level({ limit, capacity, used, remaining, reset_after_us }) {
  const element = document.createElement("div");
  element.className = "level";
  const [words, bar] = [document.createElement("p"), document.createElement("div")];
  const [name, text] = [document.createElement("code"), document.createElement("span")];
  name.textContent = limit;
  text.textContent = `${count(used)} of ${count(capacity)} used, ${count(remaining)} left, fully recovered in ${span(reset_after_us)}`;
  words.append(name, text);
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
