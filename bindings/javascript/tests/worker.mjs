// A worker that runs the portable tests, and limits one of its routes.

import { Limiter } from "sluicegate";
import { run, TESTS } from "./portable.mjs";

const limiter = Limiter.inMemory();

export default {
  async fetch(request) {
    switch (new URL(request.url).pathname) {
      case "/portable":
        return Response.json({ tests: Object.keys(TESTS).length, failures: await run() });
      case "/limited": {
        const decision = await limiter.take("all", "gcra:1/1h");
        return new Response(null, { status: decision.allowed ? 200 : 429, headers: decision.headers() });
      }
      case "/server": {
        // A connection belongs to its request.
        const server = Limiter.server(new URL(request.url).searchParams.get("url"), { timeout: 5000 });
        const decisions = [await server.take("worker", "gcra:1/1h"), await server.take("worker", "gcra:1/1h")];
        await server.close();
        return Response.json(decisions.map((it) => [it.allowed, it.source]));
      }
      default:
        return new Response("ready");
    }
  },
};
