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
      default:
        return new Response("ready");
    }
  },
};
