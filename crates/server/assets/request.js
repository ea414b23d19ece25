// Requests to the server, with the token if it requires one.

const dialog = document.getElementById("token-dialog");
const field = document.getElementById("token");
let token = sessionStorage.getItem("sluicegate-token") ?? "";
let tokenRequest;

/** Sends a request; without a body it is a GET. Throws an Error with the detail of the response. */
export async function request(path, body, signal) {
  for (;;) {
    const given = token;
    const headers = given ? { authorization: `Bearer ${given}` } : {};
    if (body) headers["content-type"] = "application/json";
    const method = body ? "POST" : "GET";
    const reply = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    if (reply.ok) return reply;
    if (reply.status !== 401) throw await errorOf(reply);
    // Several requests may fail at once: one dialog is enough.
    if (given === token) await (tokenRequest ??= requestToken(given).finally(() => (tokenRequest = undefined)));
  }
}

/** The error that a response describes. */
async function errorOf(reply) {
  const problem = await reply.json().catch(() => ({}));
  const error = new Error(problem.detail ?? problem.title ?? `HTTP status ${reply.status}`);
  error.status = reply.status;
  return error;
}

function requestToken(before) {
  document.getElementById("token-wrong").textContent = before ? "Wrong token." : "";
  field.value = "";
  dialog.showModal();
  return new Promise((given) => {
    dialog.addEventListener("close", () => {
      token = field.value;
      sessionStorage.setItem("sluicegate-token", token);
      given();
    }, { once: true });
  });
}

/** Calls `seen` with each frame until the stream ends. */
export async function frames(seen, signal) {
  const reply = await request("/dashboard/events", undefined, signal);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) seen(JSON.parse(event.slice("data: ".length)));
  }
}
