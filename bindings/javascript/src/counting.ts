/**
 * Windows that count every request, for the interfaces of other packages, which decide themselves: a window begins with its first request, and requests
 * beyond the limit count too.
 */

import { checkedLimiter, shown } from "./arguments.js";
import type { Key } from "./core.js";
import type { Decision } from "./decision.js";
import { SettingsError } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { Policy } from "./policy.js";

/** More than any limit: the usage is what remains of this. */
const CAPACITY = 4_294_967_295;
const MAX_PERIOD_MS = 366 * 86_400_000;

/** Usage of a window. */
export interface Count {
  /** Units in the window. */
  readonly units: number;
  /** Milliseconds until the window ends. */
  readonly resetMs: number;
}

/** Counts units in windows of `periodMs` milliseconds. */
export class Windows {
  readonly #limiter: Limiter;
  readonly #policy: Policy;

  constructor(limiter: Limiter, periodMs: number) {
    if (!(typeof periodMs === "number" && periodMs > 0)) throw new SettingsError(`invalid window \`${shown(periodMs)}\`: expected milliseconds, 1 or more`);
    this.#limiter = checkedLimiter(limiter);
    const period = Math.min(Math.max(Math.round(periodMs * 1000), 1000), MAX_PERIOD_MS * 1000);
    // A fallback knows no counts.
    this.#policy = new Policy(`fixed-window:${CAPACITY}/${period}us`, { onError: "fail" });
  }

  /** Counts units, and returns the usage with them. */
  async add(key: Key, units = 1): Promise<Count> {
    return countOf(await this.#limiter.charge(key, this.#policy, units));
  }

  /** Takes units back. */
  async remove(key: Key, units = 1): Promise<Count> {
    return countOf(await this.#limiter.refund(key, this.#policy, units));
  }

  /** The usage. */
  async read(key: Key): Promise<Count> {
    return countOf(await this.#limiter.peek(key, this.#policy, 0));
  }

  /** Forgets the usage of a key. Whether it had any. */
  async reset(key: Key): Promise<boolean> {
    return this.#limiter.reset(key);
  }
}

function countOf(decision: Decision): Count {
  return { units: decision.limit - decision.remaining, resetMs: decision.resetAfterMs };
}
