/** Policies: the text, or objects that are written as text. The core reads the text. */

import { known, setting, shown } from "./arguments.js";
import { shared } from "./core.js";
import { PolicyError, SettingsError } from "./errors.js";

/** The answer while the store is unavailable: `local=1/4` decides in this process, with a quarter of the policy. */
export type OnError = "deny" | "allow" | "fail" | "local" | `local=${number}/${number}`;

/** One limit. Its period is `per`, a duration such as `"1m"`, or `"day"`, `"week"`, `"month"` or `"year"` for a fixed window; or `perMs`, milliseconds. */
export type Limit = LimitOptions & ({ per: string; perMs?: undefined } | { per?: undefined; perMs: number });

/** What a limit has beside its period. */
export interface LimitOptions {
  algorithm:
    | "gcra"
    | "token-bucket"
    | "leaky-bucket"
    | "leaky-queue"
    | "fixed-window"
    | "sliding-log"
    | "sliding-counter"
    | "concurrency";
  /** Units per period; for `concurrency`, units that are held at once. */
  limit: number;
  /** What an idle key admits at once. */
  burst?: number;
  /** The same for buckets that leak. */
  capacity?: number;
  refill?: "continuous" | "interval";
  borrow?: boolean;
  align?: "first" | "clock";
  tz?: string;
  count?: "allowed" | "all";
  keep?: string;
  /** The same in milliseconds. */
  keepMs?: number;
  keepMax?: number;
}

/** A policy, or what one is made of. */
export type PolicyLike = string | Policy | Limit | readonly Limit[];

/** One to eight limits, which are decided together. */
export class Policy {
  /** The text in its normal form. */
  readonly text: string;
  /** The answer while the store is unavailable, if it is set. */
  readonly onError: OnError | undefined;
  /** @internal Identity: policies with the same text and settings share it. */
  readonly id: string;

  /** @throws {PolicyError} The text or a member is invalid. @throws {SettingsError} `onError` is invalid, or another setting is given. */
  constructor(policy: PolicyLike, settings: { onError?: OnError | undefined } = {}) {
    known("setting", settings, ["onError"]);
    checkOnError(settings.onError);
    const text = textOf(policy);
    this.onError = settings.onError ?? (policy instanceof Policy ? policy.onError : undefined);
    this.id = idOf(text, this.onError);
    this.text = text.startsWith("@") ? text : shared().normal(this.id);
  }

  /** Both: a request must fit in all limits of the two. */
  and(other: PolicyLike): Policy {
    const theirs = other instanceof Policy ? other.onError : undefined;
    if (this.onError !== undefined && theirs !== undefined && this.onError !== theirs) {
      throw new PolicyError(`invalid onError \`${theirs}\` beside \`${this.onError}\`: expected one value`);
    }
    return new Policy(`${this.text},${textOf(other)}`, { onError: this.onError ?? theirs });
  }

  /** The policy in words, a line for each limit. */
  explain(): string {
    return shared().explain(this.id);
  }

  toString(): string {
    return this.text;
  }
}

/** Whether `text` is the text of a policy. */
export function isPolicy(text: string): boolean {
  try {
    shared().normal(text);
    return true;
  } catch {
    return false;
  }
}

/** A policy for requests that are taken and not held. @throws {SettingsError} It has `concurrency` limits. */
export function checkedRates(policy: Policy): Policy {
  if (!policy.text.startsWith("@") && shared().wasm.hold_ttl(shared().policy(policy.id)) >= 0) {
    throw new SettingsError(`invalid policy \`${policy.text}\`: expected one without \`concurrency\`, whose units are held`);
  }
  return policy;
}

/** Throws a `SettingsError` if the answer while the store is unavailable is invalid. */
export function checkOnError(onError: unknown): void {
  const [, part = "", whole = ""] = /^local=(\d{1,9})\/(\d{1,9})$/.exec(String(onError)) ?? [];
  const isShare = Number(part) > 0 && Number(part) <= Number(whole);
  const isValid = typeof onError === "string" && (isShare || ["deny", "allow", "fail", "local"].includes(onError));
  setting("onError", onError, isValid, "deny, allow, fail, local or a share such as local=1/4");
}

/** Separates the text of a policy from its `onError` in an identity. */
const SEPARATOR = "\0";

/** The identity of a policy: its text and its answer while the store is unavailable. */
export function idOf(text: string, onError: string | undefined): string {
  return onError === undefined ? text : `${text}${SEPARATOR}${onError}`;
}

/** The text and the `onError` of an identity. */
export function partsOf(id: string): [text: string, onError: string] {
  const at = id.indexOf(SEPARATOR);
  return at < 0 ? [id, ""] : [id.slice(0, at), id.slice(at + 1)];
}

/** The text of a policy, which may be invalid. */
export function textOf(policy: PolicyLike): string {
  if (typeof policy === "string") return policy;
  if (policy instanceof Policy) return policy.text;
  if (Array.isArray(policy)) return policy.map(textOf).join(",");
  if (typeof policy === "object" && policy !== null) return limitText(policy as Limit);
  throw new PolicyError(`invalid policy of type \`${typeof policy}\`: expected a text, a Policy, or an object with algorithm, limit, and per or perMs`);
}

function limitText({ algorithm, limit, per, perMs, keep, keepMs, ...options }: Limit): string {
  const period = spanText("per", per, perMs);
  if (algorithm === undefined || limit === undefined || period === undefined) {
    throw new PolicyError("invalid policy object: expected the members algorithm, limit, and per or perMs");
  }
  let text = `${algorithm}:${limit}/${period}`;
  const kept = spanText("keep", keep, keepMs);
  for (const [name, value] of Object.entries({ ...options, keep: kept })) {
    if (value === undefined || value === false) continue;
    const option = name.replace(/[A-Z]/g, (upper) => `-${upper.toLowerCase()}`);
    text += value === true ? `:${option}` : `:${option}=${value}`;
  }
  return text;
}

/** The text of a span that is given as a text with a unit, or in milliseconds. */
function spanText(name: string, span: string | undefined, ms: number | undefined): string | undefined {
  if (span !== undefined && typeof span !== "string") {
    throw new PolicyError(`invalid ${name} \`${shown(span)}\`: expected a text with a unit, such as "60s", or milliseconds as ${name}Ms`);
  }
  if (ms === undefined) return span;
  if (span !== undefined) throw new PolicyError(`invalid ${name}Ms \`${shown(ms)}\` beside ${name}: expected one of them`);
  if (typeof ms !== "number" || !(ms >= 0)) throw new PolicyError(`invalid ${name}Ms \`${shown(ms)}\`: expected milliseconds`);
  return `${Math.round(ms * 1000)}us`;
}
