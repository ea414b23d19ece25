// An application that answers with the paths that Node derives from a target, one per line.

import http from "node:http";
import path from "node:path";
import url from "node:url";

function* readings(target) {
  yield target.split("?")[0];
  // As Express does.
  yield url.parse(target).pathname ?? "";
  const whatwg = new URL(target, "http://application").pathname;
  yield whatwg;
  yield path.posix.normalize(decodeURIComponent(whatwg));
}

const server = http.createServer((request, response) => {
  const paths = [];
  try {
    for (const it of readings(request.url)) paths.push(it);
  } catch {
    // One of the parsers rejects the target.
  }
  response.end(paths.join("\n"));
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
