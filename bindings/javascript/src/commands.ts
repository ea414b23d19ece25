/** The commands of a server or the module (`SG.TAKE`), and the functions of the same names (`FCALL sg_take`). */

import { Code, INTEGERS, type Answer, type KeyedCost, type Operation } from "./core.js";
import type { Word } from "./clients.js";
import { CorruptState, inMilliseconds, OperationError, PolicyError, StoreError, StoreUnavailable } from "./errors.js";

/** How the store is asked: by commands or by functions. */
export type Dialect = "commands" | "functions";

/** A command without its dialect: its name, its keys, and the arguments behind each key and at the end. */
export interface Command {
  readonly name: string;
  readonly keys: readonly Word[];
  /** For each key, its policy and cost. */
  readonly each: readonly (readonly Word[])[];
  readonly options: readonly Word[];
}

const NAMES = ["take", "peek", "charge", "refund", "reserve", "reset", "hold", "settle", "renew"] as const;

/** The command of an operation on a key. */
export function commandOf(key: Word, policy: string, { code, cost, span, id }: Operation): Command {
  const options: Word[] = [];
  if (code >= Code.Hold) options.push(id);
  if (code === Code.Settle) {
    if (span >= 0) options.push("USED", String(cost));
  } else if (code !== Code.Renew && cost !== 1) {
    options.push("COST", String(cost));
  }
  if (code === Code.Reserve) options.push("MAXWAIT", String(span));
  if ((code === Code.Hold || code === Code.Renew) && span >= 0) options.push("TTL", String(span));
  return { name: NAMES[code], keys: [key], each: [[policy]], options };
}

/** The command that resets a key. */
export function resetOf(key: Word): Command {
  return { name: "reset", keys: [key], each: [[]], options: [] };
}

/** The command that takes from several keys, or holds under one id: all or none. */
export function allOf(keys: readonly KeyedCost[], { code, span, id }: Operation): Command {
  const options: Word[] = [];
  if (code === Code.Hold) options.push("ID", id);
  if (code === Code.Hold && span >= 0) options.push("TTL", String(span));
  return { name: "takeall", keys: keys.map((it) => it.key), each: keys.map((it) => [it.policy, String(it.cost)]), options };
}

/** The words of a command. `at` is the time to send, in microseconds, for a store with a test clock. */
export function wordsOf({ name, keys, each, options }: Command, dialect: Dialect, at: number | undefined): Word[] {
  const time = at === undefined ? [] : ["AT", String(Math.floor(at))];
  const isAll = name === "takeall";
  if (dialect === "functions") {
    return ["FCALL", `sg_${name}`, String(keys.length), ...keys, ...each.flat(), ...options, ...time];
  }
  const keyed = keys.flatMap((key, index) => [key, ...(each[index] ?? [])]);
  return [`SG.${name.toUpperCase()}`, ...(isAll ? [String(keys.length)] : []), ...keyed, ...options, ...time];
}

/** The answer in the reply to a command on one key. @throws {StoreUnavailable} It is none. */
export function answerOf(reply: unknown): Answer {
  return { integers: integersOf(reply), source: "store", key: 0, each: [] };
}

/** The answer in the reply to a command on several keys. @throws {StoreUnavailable} It is none. */
export function answerOfAll(reply: unknown, count: number): Answer {
  if (!Array.isArray(reply) || reply.length !== count + 1) throw unexpected(reply);
  const [all, ...each] = reply as [unknown[], ...unknown[]];
  return { integers: integersOf(all), source: "store", key: Number(all[INTEGERS]), each: each.map(integersOf) };
}

function integersOf(reply: unknown): number[] {
  if (!Array.isArray(reply) || reply.length < INTEGERS) throw unexpected(reply);
  const integers = reply.slice(0, INTEGERS).map(Number);
  if (!integers.every(Number.isSafeInteger)) throw unexpected(reply);
  return integers;
}

function unexpected(reply: unknown): StoreError {
  return new StoreUnavailable(`unexpected reply of the store: ${String(JSON.stringify(reply)).slice(0, 100)}`);
}

/** What an error of the server or of its client means. */
export type Failure = { readonly kind: "unknown command" | "unknown function" } | { readonly kind: "error"; readonly error: Error };

/** Beginnings of `ERR` errors that are about arguments, from any part of Sluicegate and from Redis. */
const ABOUT_ARGUMENTS =
  /^(invalid|unknown option|duplicate option|missing (value|ttl|id|policy|cost|key)|option [A-Z]+ (has no|is un)|reserve needs|wrong number of arguments|Number of keys|syntax error|value is |string exceeds |Protocol error|min or max |key has )/;

/** What to do for time zones, for those who use a client of Sluicegate already. */
const ZONES = "for others, use a Sluicegate server, or load the Sluicegate module into the store";

/** Reads an error. Other than arguments and states that cannot be used, all mean that the store is unavailable. */
export function failureOf(error: unknown): Failure {
  const text = error instanceof Error ? error.message : String(error);
  const [, code = "", details = ""] = /^([A-Z]+) ([^]*)$/.exec(text) ?? [];
  const failed = (it: Error): Failure => ({ kind: "error", error: Object.assign(it, { cause: error }) });
  if (/^unknown command/i.test(details) || /^ERR_REDIS.*unknown command/i.test(text)) return { kind: "unknown command" };
  if (/^Function not found/.test(details)) return { kind: "unknown function" };
  if (code === "SGPOLICY") return failed(new PolicyError(details.replace(/use a\s+Sluicegate client or server for others/, ZONES)));
  if (code === "WRONGTYPE" || code === "SGSTATE") return failed(new CorruptState(`the key's state cannot be used: ${text}`));
  if (code === "CROSSSLOT") {
    return failed(new OperationError("invalid keys: expected keys in one slot of the cluster, such as `{acme}:requests` and `{acme}:tokens`"));
  }
  if (code === "ERR" && ABOUT_ARGUMENTS.test(details)) return failed(new OperationError(inMilliseconds(details)));
  if (code === "SGSTORE") return failed(new StoreUnavailable(details));
  return failed(new StoreUnavailable(`the store is unavailable: ${text}`));
}
