/** Checks of arguments, with errors that name the value and what is expected. */

import type { Key } from "./core.js";
import { InvalidKey, OperationError, SettingsError } from "./errors.js";

const MAX_UNITS = 4_294_967_295;
/** 35 years: no wait is longer. */
const MAX_SPAN_US = 2 ** 50;
/** A day: no hold is longer. */
export const MAX_TTL_US = 86_400_000_000;
const MAX_ID = 64;
/** Characters of a value in an error. */
const MAX_SHOWN = 100;

/** The error that an invalid value is: of an argument of a call, or of a setting. */
type Kind = typeof OperationError | typeof SettingsError;

/** A whole number of units. */
export function units(name: string, value: number, Invalid: Kind = OperationError): number {
  if (!Number.isInteger(value) || value < 0 || value > MAX_UNITS) {
    throw new Invalid(`invalid ${name} \`${shown(value)}\`: expected a whole number from 0 to ${MAX_UNITS}`);
  }
  return value;
}

/** Milliseconds, as whole microseconds. Infinity is the longest span. */
export function micros(name: string, ms: number, Invalid: Kind = OperationError): number {
  if (typeof ms !== "number" || !(ms >= 0)) {
    throw new Invalid(`invalid ${name} \`${shown(ms)}\`: expected milliseconds, 0 or more`);
  }
  return Math.min(Math.round(ms * 1000), MAX_SPAN_US);
}

/** A value as an error shows it: a text has quotation marks, because it may look like a number. */
export function shown(value: unknown): string {
  if (typeof value === "function") return "a function";
  if (typeof value !== "string" && (typeof value !== "object" || value === null)) return String(value);
  try {
    const text = JSON.stringify(value) ?? typeof value;
    return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}...` : text;
  } catch {
    return "an object";
  }
}

/** Checks a setting that is given. */
export function setting(name: string, value: unknown, isValid: boolean, expected: string): void {
  if (!isValid && value !== undefined) throw new SettingsError(`invalid ${name} \`${shown(value)}\`: expected ${expected}`);
}

/** A limiter, of another copy of the package, too. */
export function checkedLimiter<L extends { take?: unknown }>(limiter: L): L {
  if (typeof limiter?.take !== "function") throw new SettingsError("missing limiter: expected `Limiter.inMemory()` or another limiter");
  return limiter;
}

/** The lifetime of a hold in milliseconds, as whole microseconds. */
export function ttlMicros(ms: number): number {
  const us = micros("ttl", ms);
  if (us < 1000 || us > MAX_TTL_US) throw new OperationError(`invalid ttl \`${shown(ms)}\`: expected 1 to ${MAX_TTL_US / 1000} milliseconds`);
  return us;
}

/** A key. Another value would be one key with others of its type. @throws {InvalidKey} It is neither text nor bytes. */
export function checkedKey(key: Key): Key {
  if (typeof key !== "string" && !isBytes(key)) throw new InvalidKey(`invalid key of type \`${typeOf(key)}\`: expected a string or a Uint8Array`);
  return key;
}

/** The id of a hold. */
export function idBytes(id: Key): Uint8Array {
  if (typeof id !== "string" && !isBytes(id)) throw new OperationError(`invalid id of type \`${typeOf(id)}\`: expected a string or a Uint8Array`);
  const bytes = typeof id === "string" ? new TextEncoder().encode(id) : id;
  if (bytes.length < 1 || bytes.length > MAX_ID) {
    throw new OperationError(`invalid id of ${bytes.length} bytes: expected 1 to ${MAX_ID} bytes`);
  }
  return bytes;
}

/** Those of another realm included, which are no instances of the class of this one. */
function isBytes(value: unknown): boolean {
  return ArrayBuffer.isView(value) && (value as Uint8Array).BYTES_PER_ELEMENT === 1;
}

function typeOf(value: unknown): string {
  return value === null ? "null" : typeof value;
}

/** Throws if `given` is no object, or has a member that is none of `names`. */
export function known(kind: string, given: object, names: readonly string[]): void {
  if (typeof given !== "object" || given === null) throw new SettingsError(`invalid ${kind}s \`${shown(given)}\`: expected an object with ${names.join(", ")}`);
  for (const name of Object.keys(given)) {
    if (!names.includes(name)) throw new SettingsError(`unknown ${kind} \`${name}\`: expected ${names.length > 1 ? "one of " : ""}${names.join(", ")}`);
  }
}
