/** Policies: the text, or objects that are written as text. The core reads the text. */

import { shared } from "./core.js";
import { PolicyError } from "./errors.js";

/** The answer while the store is unavailable: `local=1/4` decides in this process, with a quarter of the policy. */
export type OnError = "deny" | "allow" | "fail" | "local" | `local=${number}/${number}`;

/** One limit. `per` is a duration such as `"1m"`, or milliseconds; or `"day"`, `"week"`, `"month"` or `"year"` for a fixed window. */
export interface Limit {
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
  per: string | number;
  /** What an idle key admits at once. */
  burst?: number;
  /** The same for buckets that leak. */
  capacity?: number;
  refill?: "continuous" | "interval";
  borrow?: boolean;
  align?: "first" | "clock";
  tz?: string;
  count?: "allowed" | "all";
  keep?: string | number;
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

  /** @throws {PolicyError} The text, a member or `onError` is invalid. */
  constructor(policy: PolicyLike, settings: { onError?: OnError | undefined } = {}) {
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
  throw new PolicyError(`invalid policy of type \`${typeof policy}\`: expected a text, a Policy, or an object with algorithm, limit and per`);
}

function limitText({ algorithm, limit, per, ...options }: Limit): string {
  if (algorithm === undefined || limit === undefined || per === undefined) {
    throw new PolicyError("invalid policy object: expected the members algorithm, limit and per");
  }
  let text = `${algorithm}:${limit}/${spanText(per)}`;
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === false) continue;
    const option = name.replace(/[A-Z]/g, (upper) => `-${upper.toLowerCase()}`);
    text += value === true ? `:${option}` : `:${option}=${name === "keep" ? spanText(value as string | number) : value}`;
  }
  return text;
}

function spanText(span: string | number): string {
  return typeof span === "number" ? `${Math.round(span * 1000)}us` : span;
}
