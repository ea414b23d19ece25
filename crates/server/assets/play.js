// The playground: simulated requests, decided by the server on state that this page keeps.

import { request } from "/dashboard/request.js";
import { count, several, span } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
const [policy, run, pace, line] = ["play-policy", "play-run", "play-rate", "play-line"].map(byId);

/** How often requests are sent while it runs, in milliseconds. */
const TURN = 200;
/** The time range of the drawing, in seconds. */
const SHOWN = 15;

/** The recent decisions and the state of the simulated key. */
let game = fresh();
let timer;
let busy = false;

function fresh() {
  return { state: null, policy: "", marks: [], allowed: 0, denied: 0, pending: [], owed: 0, before: Date.now() };
}

/** Sends the requests that have become due, and shows the decisions. */
async function turn() {
  if (busy) return;
  busy = true;
  const now = Date.now();
  const mine = game;
  const running = run.getAttribute("aria-pressed") === "true";
  if (running) due(mine, now);
  mine.before = now;
  const takes = mine.pending.splice(0, 512);
  const query = { policy: policy.value, state: mine.state, now_us: now * 1000, takes };
  try {
    const played = await (await request("/dashboard/play", query)).json();
    if (mine === game) {
      mine.state = played.state;
      // The counts are those of one policy.
      if (mine.policy !== played.policy) Object.assign(mine, { policy: played.policy, allowed: 0, denied: 0 });
      for (const decision of played.decisions) note(mine, decision);
      byId("play-wrong").textContent = "";
      vessels(played);
      describe(mine, played, running);
    }
  } catch (error) {
    byId("play-wrong").textContent = error.message;
    press(false);
    mine.pending.length = 0;
    rest();
  }
  busy = false;
  if (run.getAttribute("aria-pressed") !== "true" && !game.pending.length && game.state === null) rest();
}

/** Adds requests at the chosen rate, evenly spread over the time since the previous turn. */
function due(game, now) {
  const elapsed = Math.min(now - game.before, 1000);
  game.owed += (elapsed * pace.value) / 1000;
  const many = Math.floor(game.owed);
  game.owed -= many;
  for (let index = 1; index <= many; index += 1) {
    const at = now - elapsed + (elapsed * index) / many;
    game.pending.push({ at_us: Math.round(at * 1000), cost: 1 });
  }
}

function note(game, { at_us, allowed, delay_us }) {
  game[allowed ? "allowed" : "denied"] += 1;
  game.marks.push({ at: at_us / 1000, allowed, delay: delay_us / 1000 });
}

function go() {
  game.before = Date.now();
  timer ??= setInterval(turn, TURN);
  drawing ??= requestAnimationFrame(draw);
  turn();
}

function rest() {
  clearInterval(timer);
  timer = undefined;
}

function describe({ allowed, denied }, { next }, running) {
  const so = allowed + denied ? `${several(allowed + denied, "request")}: ${count(allowed)} allowed, ${count(denied)} denied. ` : "";
  const then = next.allowed
    ? next.delay_us ? `The next request is delayed by ${span(next.delay_us)}.` : `${count(next.remaining)} more allowed now.`
    : next.never ? "No request can succeed." : `Next request allowed in ${span(next.retry_after_us)}.`;
  // While it runs, the text changes once a second, because screen readers announce it.
  const now = Math.floor(Date.now() / 1000);
  if (running && now === announcedAt) return;
  announcedAt = now;
  byId("play-status").textContent = so + then;
}
let announcedAt;

const VESSEL = `
  <svg width="128" height="150" viewBox="0 0 128 150" aria-hidden="true">
    <rect class="water" x="10" y="12" width="108" height="130" rx="5"></rect>
    <g class="tokens"></g>
    <path class="wall" d="M4 6v132a8 8 0 0 0 8 8h104a8 8 0 0 0 8-8V6"></path>
  </svg>
  <p class="status"><b></b></p><code></code>`;
/** The largest bucket whose tokens are drawn one by one. */
const MOST_TOKENS = 120;
const isBucket = (limit) => /^(token-bucket|gcra):/.test(limit);

/** A vessel for each limit: a bucket holds the tokens that are left, any other the units that are used. */
function vessels({ limits }) {
  const place = byId("play-vessels");
  while (place.children.length > limits.length) place.lastChild.remove();
  limits.forEach(({ limit, capacity, used, remaining }, index) => {
    if (!place.children[index]) {
      const vessel = document.createElement("div");
      vessel.className = "vessel";
      vessel.innerHTML = VESSEL;
      vessel.setAttribute("role", "meter");
      vessel.setAttribute("aria-valuemin", 0);
      place.append(vessel);
    }
    const vessel = place.children[index];
    const bucket = isBucket(limit);
    const single = bucket && capacity <= MOST_TOKENS;
    const level = bucket ? remaining : Math.min(used, capacity);
    vessel.setAttribute("aria-label", `${limit}, ${bucket ? "tokens left" : "used"}`);
    vessel.setAttribute("aria-valuemax", capacity);
    vessel.setAttribute("aria-valuenow", level);
    vessel.classList.toggle("full", remaining === 0);
    vessel.style.setProperty("--part", single ? 0 : level / capacity);
    tokens(vessel.querySelector(".tokens"), single ? capacity : 0, remaining);
    vessel.querySelector("b").textContent = bucket
      ? `${count(remaining)} of ${count(capacity)} tokens left`
      : `${count(used)} of ${count(capacity)} used`;
    vessel.querySelector("code").textContent = limit;
  });
}

/** Circles from the bottom up: the tokens that are left are filled. */
function tokens(group, capacity, remaining) {
  const columns = Math.max(1, Math.ceil(Math.sqrt((capacity * 108) / 130)));
  const size = Math.min(108 / columns, 130 / Math.max(1, Math.ceil(capacity / columns)), 30);
  const left = 64 - (size * Math.min(columns, capacity)) / 2;
  if (group.children.length !== capacity) {
    const circles = Array.from({ length: capacity }, (_, index) => {
      const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      circle.setAttribute("cx", left + size * ((index % columns) + 0.5));
      circle.setAttribute("cy", 140 - size * (Math.floor(index / columns) + 0.5));
      circle.setAttribute("r", size * 0.4);
      return circle;
    });
    group.replaceChildren(...circles);
  }
  [...group.children].forEach((circle, index) => circle.classList.toggle("left", index < remaining));
}

/** The last seconds: allowed requests above the line, denied ones below. */
let drawing;
function draw() {
  const ratio = devicePixelRatio;
  const [width, height] = [line.clientWidth, line.clientHeight];
  if (line.width !== Math.round(width * ratio)) [line.width, line.height] = [width * ratio, height * ratio];
  const pen = line.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const now = Date.now();
  const middle = height / 2;
  const place = (at) => width - ((now - at) / 1000 / SHOWN) * width;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.lineWidth = 1;
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--soft");
  pen.font = "11px system-ui, sans-serif";
  for (let ago = 0; ago <= SHOWN; ago += 5) {
    const x = width - (ago / SHOWN) * width;
    pen.textAlign = ago === 0 ? "right" : ago === SHOWN ? "left" : "center";
    pen.fillText(ago ? `${ago} s ago` : "now", x, height - 4);
  }
  pen.beginPath();
  pen.moveTo(0, middle - 6);
  pen.lineTo(width, middle - 6);
  pen.stroke();
  game.marks = game.marks.filter(({ at, delay }) => at + delay > now - SHOWN * 1000);
  pen.lineWidth = 2;
  for (const { at, allowed, delay } of game.marks) {
    pen.strokeStyle = colour(allowed ? "--allowed" : "--denied");
    const x = place(at);
    pen.beginPath();
    pen.moveTo(x, middle - 6);
    pen.lineTo(x, allowed ? middle - 34 : middle + 18);
    pen.stroke();
    if (delay) {
      pen.beginPath();
      pen.arc(place(at + delay), middle - 42, 3, 0, 7);
      pen.stroke();
    }
  }
  const more = timer || game.marks.length;
  drawing = more ? requestAnimationFrame(draw) : undefined;
}

function press(on) {
  run.setAttribute("aria-pressed", on);
  run.textContent = on ? "Pause" : "Run";
}

function take(many) {
  const at_us = Date.now() * 1000;
  for (let index = 0; index < many; index += 1) game.pending.push({ at_us, cost: 1 });
  go();
}

run.addEventListener("click", () => {
  press(run.getAttribute("aria-pressed") !== "true");
  go();
});
byId("play-one").addEventListener("click", () => take(1));
byId("play-ten").addEventListener("click", () => take(10));
byId("play-again").addEventListener("click", () => {
  game = fresh();
  byId("play-status").textContent = "The key is unused.";
  go();
});
byId("play-form").addEventListener("submit", (event) => {
  event.preventDefault();
  go();
});
pace.addEventListener("input", () => (byId("play-rate-value").textContent = pace.value));
policy.addEventListener("change", go);
new ResizeObserver(() => (drawing ??= requestAnimationFrame(draw))).observe(line);

// Draws the policy of the form once it is visible.
new IntersectionObserver(([it], observer) => {
  if (!it.isIntersecting) return;
  observer.disconnect();
  go();
}).observe(byId("playground"));
