// The list of all sampled keys: denied ones first, filtered, refreshed with each frame while it is open.

import { request } from "/dashboard/request.js";
import { lookUpKey } from "/dashboard/keys.js";
import { count, rate } from "/dashboard/words.js";

const byId = (id) => document.getElementById(id);
let isLoading = false;

/** Takes in a frame. */
export function seen(frame) {
  byId("all-keys").hidden = frame.hot.keys === "off";
  byId("list-prefix").disabled = frame.hot.keys === "masked";
  refresh();
}

async function refresh() {
  if (!byId("list").open || isLoading) return;
  isLoading = true;
  try {
    const wanted = { prefix: byId("list-prefix").value, denied: byId("list-denied").checked };
    show(await (await request("/dashboard/keys", wanted)).json());
  } catch {
    // The next frame tries again.
  }
  isLoading = false;
}

function show({ count: all, keys }) {
  const body = byId("listed-keys").tBodies[0];
  while (body.rows.length > keys.length) body.lastChild.remove();
  keys.forEach((it, index) => {
    const row = body.rows[index] ?? body.appendChild(made());
    const [place, denied, requests] = row.cells;
    const [button, tag, by] = place.firstChild.children;
    button.hidden = Boolean(it.partly);
    tag.hidden = !it.partly;
    tag.textContent = it.key;
    button.textContent = it.key || "(empty)";
    button.dataset.key = it.key;
    button.dataset.base64 = it.key_base64 ?? "";
    const limit = it.denied_by;
    by.textContent = it.blocked ? "blocked" : limit ? `${limit.rule ? `${limit.rule}: ` : ""}${limit.limit}` : "";
    denied.textContent = it.denied ? rate(it.denied) : "0";
    requests.textContent = rate(it.rate);
  });
  const note = all > keys.length ? `${count(keys.length)} of ${count(all)} sampled keys.` : all === 1 ? "1 sampled key." : `${count(all)} sampled keys.`;
  const text = `${note} The server stores hashes of keys: only keys sampled in the last ~16 s can be listed.`;
  if (byId("list-note").textContent !== text) byId("list-note").textContent = text;
}

function made() {
  const row = document.createElement("tr");
  row.innerHTML = '<td><div class="key"><button type="button"></button><span class="tag"></span><span class="by"></span></div></td><td class="number"></td><td class="number"></td>';
  return row;
}

byId("list").addEventListener("toggle", refresh);
byId("list-form").addEventListener("input", refresh);
byId("list-form").addEventListener("submit", (event) => event.preventDefault());
byId("listed-keys").addEventListener("click", ({ target }) => {
  if (target instanceof HTMLButtonElement) lookUpKey(target);
});
