// The page: frames as they arrive, the charts, and the time range.

import { request, frames } from "/dashboard/request.js";
import * as charts from "/dashboard/charts.js";
import * as keys from "/dashboard/keys.js";
import * as list from "/dashboard/list.js";
import { between, lost, show } from "/dashboard/live.js";
import { rules } from "/dashboard/rules.js";
import "/dashboard/play.js";

const byId = (id) => document.getElementById(id);
const status = byId("status");
const connectionError = byId("connection-error");

let last;
let stop;
/** How long a hidden page stays connected, in milliseconds. */
const HIDDEN = 30_000;

function showConnection(state, text) {
  if (status.dataset.state !== state || state !== "live") status.textContent = text;
  status.dataset.state = state;
}

function seen(frame) {
  const rates = last && between(last, frame);
  if (!last) fill();
  show(frame, rates);
  rules(frame, rates && last);
  keys.seen(frame);
  list.seen(frame);
  if (rates) charts.add(frame.at_us / 1e6, rates.allowed, rates.denied, frame.latency?.p50_us, frame.latency?.p99_us);
  last = frame;
  showConnection("live", "live");
  connectionError.hidden = true;
}

/** Fills the charts with the history that the server keeps. */
async function fill() {
  try {
    charts.fill((await (await request("/dashboard/history")).json()).samples);
    byId("now").dataset.filled = "true";
  } catch {
    // The charts then begin with the first frame.
  }
}

/** Stays connected while the page is open, and reconnects when the server was unavailable. */
async function connect() {
  for (;;) {
    stop = new AbortController();
    let pause = 1000;
    try {
      await frames(seen, stop.signal);
      showConnection("lost", "server closed the connection");
    } catch (error) {
      if (stop.signal.aborted) {
        await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
        last = undefined;
        continue;
      }
      showConnection("lost", error.status === 503 ? "busy" : "not connected");
      connectionError.textContent = error.status ? error.message : "The server is unreachable. Retrying.";
      connectionError.hidden = false;
      if (error.status === 503) pause = 10_000;
    }
    lost();
    if (last) charts.add(Date.now() / 1000);
    last = undefined;
    await new Promise((go) => setTimeout(go, pause));
  }
}

// A page that stays hidden disconnects.
let hiding;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => stop?.abort(), HIDDEN);
});

byId("range").addEventListener("click", ({ target }) => {
  if (!(target instanceof HTMLButtonElement)) return;
  for (const button of byId("range").children) button.setAttribute("aria-pressed", button === target);
  charts.show(Number(target.dataset.seconds));
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", charts.start);
charts.start();
connect();
