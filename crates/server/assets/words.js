// Formats numbers, durations and sizes in few characters of stable width.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A whole number with grouped digits; millions from 10 million on. */
export const count = (number) =>
  number < 1e7 ? grouped.format(number) : `${shortened(number / 1e6)} M`;

/** A rate per second. */
export function rate(number) {
  if (number >= 1e6) return `${shortened(number / 1e6)} M`;
  if (number >= 100 || number === 0) return grouped.format(number);
  if (number < 0.01) return "<0.01";
  return number.toFixed(number < 10 ? 2 : 1);
}

/** A duration in microseconds, in a unit that fits. */
export function span(us) {
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${shortened(us / 1e3)} ms`;
  const seconds = us / 1e6;
  if (seconds < 60) return `${shortened(seconds)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => seconds >= size);
  const [[big, name], [small, less]] = units.slice(first, first + 2);
  const rest = Math.floor((seconds % big) / small);
  return `${Math.floor(seconds / big)} ${name}${rest ? ` ${rest} ${less}` : ""}`;
}

/** A time in seconds since 1970, in the time zone of the browser. */
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

/** A size in bytes. */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit ? shortened(number) : number} ${units[unit]}`;
}

/** A share as a percentage. A share above zero is never shown as 0 %. */
export const percent = (part) =>
  part > 0 && part < 0.0005 ? "<0.1 %" : `${(part * 100).toFixed(part < 0.0995 ? 1 : 0)} %`;

/** `one request`, `2 requests`. */
export const several = (number, thing) =>
  number === 1 ? `1 ${thing}` : `${count(number)} ${thing}s`;

const shortened = (number) => number.toFixed(number < 9.995 ? 2 : number < 99.95 ? 1 : 0);
