// The page: frames as they come, and a key that is looked up.

import { ask, frames } from "/dashboard/ask.js";
import * as charts from "/dashboard/charts.js";
import { between, level, show } from "/dashboard/live.js";
import { rules } from "/dashboard/rules.js";
import { span } from "/dashboard/words.js";
import "/dashboard/play.js";

const byId = (id) => document.getElementById(id);
const status = byId("status");
const trouble = byId("trouble");

let last;
let stop;
/** Of how long a hidden page is still told. */
const HIDDEN = 30_000;

function told(state, text) {
  if (status.dataset.state !== state || state !== "live") status.textContent = text;
  status.dataset.state = state;
}

function seen(frame) {
  const rates = last && between(last, frame);
  show(frame, rates);
  rules(frame, rates && last);
  if (rates) charts.add(frame.at_us / 1e6, rates.allowed, rates.denied, frame.latency?.p50_us, frame.latency?.p99_us);
  last = frame;
  told("live", "live");
  trouble.hidden = true;
  refresh();
}

/** Looks for as long as the page is open, and begins again when the server has gone away. */
async function look() {
  for (;;) {
    stop = new AbortController();
    let pause = 1000;
    try {
      await frames(seen, stop.signal);
      told("lost", "the server has gone away");
    } catch (error) {
      if (stop.signal.aborted) {
        await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
        continue;
      }
      told("lost", error.status === 503 ? "no room" : "no connection");
      trouble.textContent = error.status ? error.message : "The server cannot be reached. Trying on.";
      trouble.hidden = false;
      if (error.status === 503) pause = 10_000;
    }
    if (last) charts.add(Date.now() / 1000);
    last = undefined;
    await new Promise((go) => setTimeout(go, pause));
  }
}

// Nobody looks at a page that is hidden for long.
let hiding;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => stop?.abort(), HIDDEN);
});

// A key, looked up, and then again with each frame until it has recovered.
let looked;
let refreshing = false;

async function lookUp(asked, name, quietly) {
  const result = await (await ask("/dashboard/key", asked)).json();
  const free = result.found ? `is free again in ${span(result.reset_after_us)}` : "is as if never used";
  const text = `${name}${result.mask ? ` (${result.mask})` : ""} ${free}.`;
  if (!quietly || !result.found) byId("look-told").textContent = text;
  byId("look-limits").replaceChildren(...(result.limits ?? []).map(level));
  looked = result.found ? { asked, name } : undefined;
}

async function start(asked, name) {
  looked = undefined;
  try {
    await lookUp(asked, name);
  } catch (error) {
    byId("look-told").textContent = error.message;
    byId("look-limits").replaceChildren();
  }
}

async function refresh() {
  if (!looked || refreshing) return;
  refreshing = true;
  const { asked, name } = looked;
  // What failed is tried again with the next frame.
  await lookUp(asked, name, true).catch(() => {});
  refreshing = false;
}

byId("look-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("look-key").value;
  start({ key }, key);
});

byId("hot").addEventListener("click", ({ target }) => {
  if (!(target instanceof HTMLButtonElement)) return;
  const { key, base64 } = target.dataset;
  byId("look-key").value = base64 ? "" : key;
  start(base64 ? { key_base64: base64 } : { key }, key);
  byId("look").scrollIntoView({ block: "nearest" });
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", charts.start);
charts.start();
look();
