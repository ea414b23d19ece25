// Two charts of the last minutes, and legends with the values under the pointer.

import { clock, rate, span } from "/dashboard/words.js";

/** The longest range in seconds: as much as the server keeps. */
const LONGEST = 900;
/** The shortest range in seconds, after a start of the server. */
const SHORTEST = 10;
/** A pause between two samples from which on the line is interrupted, in seconds. */
const PAUSE = 5;
const uPlot = window.uPlot;

/** The points: times in seconds, and a row for each line. */
const decisions = { times: [], rows: [[], []] };
const latency = { times: [], rows: [[], []] };

let charts = [];
/** The time at the right edge. */
let last = Date.now() / 1000;
let range = LONGEST;

/** Adds a point to both charts; without values it is a gap. */
export function add(at, allowed, denied, p50, p99) {
  append(at, allowed, denied, p50, p99);
  draw();
}

function append(at, allowed, denied, p50, p99) {
  if (at <= (decisions.times.at(-1) ?? 0)) return;
  push(decisions, at, allowed === undefined ? [null, null] : [allowed, allowed + denied]);
  push(latency, at, [p50 ?? null, p99 ?? null]);
  last = at;
}

const draw = () => charts.forEach((chart) => chart.draw());

/** Replaces the points by the samples of the server, except those from before its start. */
export function fill(samples) {
  if (samples.length < 2) return;
  const [before, after] = [decisions, latency].map(({ times, rows }) => times.map((at, index) => [at, ...rows.map((row) => row[index])]));
  const first = samples[0][0] / 1e6;
  const newest = samples.at(-1)[0] / 1e6;
  clear();
  const restore = (wanted) => before.forEach(([at, allowed, both], index) => {
    if (wanted(at)) append(at, allowed ?? undefined, both - allowed, ...after[index].slice(1));
  });
  restore((at) => at < first);
  samples.slice(1).forEach(([at_us, allowed, denied, p50, p99], index) => {
    const [since, allowedThen, deniedThen] = samples[index];
    const seconds = (at_us - since) / 1e6;
    const at = at_us / 1e6;
    if (seconds > PAUSE || decisions.times.length > 0 && index === 0) append(at - Math.min(seconds, 1));
    if (seconds > 0) append(at, (allowed - allowedThen) / seconds, (denied - deniedThen) / seconds, p50, p99);
  });
  restore((at) => at > newest);
  draw();
}

function clear() {
  for (const data of [decisions, latency]) {
    data.times.length = 0;
    data.rows.forEach((row) => (row.length = 0));
  }
}

function push({ times, rows }, at, values) {
  times.push(at);
  values.forEach((value, index) => rows[index].push(value));
  while (times[0] < at - LONGEST - 2) {
    times.shift();
    rows.forEach((row) => row.shift());
  }
}

/** Shows so many seconds. */
export function show(seconds) {
  range = seconds;
  draw();
}

/** From the oldest point within the range to now: a chart is never mostly empty. */
function shown() {
  const first = decisions.times.find((at) => at >= last - range) ?? last;
  return [Math.min(first, last - SHORTEST), last];
}

/** Points that no line leads to: they are drawn as dots. */
function alone(plot, row) {
  const values = plot.data[row];
  const is = (index) => values[index] !== null && values[index] !== undefined;
  return values.flatMap((_, index) => (is(index) && !is(index - 1) && !is(index + 1) ? [index] : []));
}

/** Whether denials are drawn at a point: elsewhere their line would cover that of the allowed decisions. */
const isDenied = (allowed, both, index) => [index - 1, index, index + 1].some((at) => both[at] > allowed[at]);

/** Draws the charts in the current colours of the page. */
export function start() {
  charts.forEach((chart) => chart.plot.destroy());
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, line] = [colour("--soft"), colour("--line")];
  const axis = { stroke: ink, font: "12px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const chart = (id, data, series, kind, values, bands) => {
    const place = document.getElementById(id);
    const size = () => ({ width: place.clientWidth, height: place.clientHeight });
    const legend = values.map((id) => document.getElementById(id));
    const options = {
      ...size(),
      series: [{}, ...series],
      bands,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      padding: [8, 24, 0, 0],
      scales: {
        x: { range: shown },
        y: { range: (_, __, most) => [0, Math.max(most ?? 0, kind.least) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 28, space: 70, values: (_, at) => at.map(clock) },
        { ...axis, size: 62, space: 42, values: (_, values) => values.map(kind.axis) },
      ],
      hooks: { setCursor: [(plot) => showCursor(plot)] },
    };
    const showCursor = (plot) => {
      const at = plot.cursor.idx ?? data.times.length - 1;
      const values = kind.parts(data.rows.map((row) => row[at] ?? undefined));
      legend.forEach((it, index) => (it.textContent = values[index] === undefined ? "–" : kind.value(values[index])));
    };
    const plot = new uPlot(options, [data.times, ...kind.drawn(data.rows)], place);
    new ResizeObserver(() => plot.setSize(size())).observe(place);
    return {
      plot,
      draw() {
        plot.setData([data.times, ...kind.drawn(data.rows)]);
        showCursor(plot);
      },
    };
  };
  const area = { width: 1.5, points: { show: true, size: 4, filter: alone }, spanGaps: false };
  charts = [
    chart("decisions-chart", decisions,
      [
        { ...area, stroke: colour("--allowed"), fill: colour("--allowed-soft") },
        { ...area, stroke: colour("--denied") },
      ],
      {
        least: 10,
        axis: rounded,
        value: rate,
        // The second line is the sum of both: the band between is what was denied.
        parts: ([allowed, both]) => [allowed, both === undefined ? undefined : both - allowed],
        drawn: ([allowed, both]) => [allowed, both.map((sum, index) => (isDenied(allowed, both, index) ? sum : null))],
      },
      ["at-allowed", "at-denied"],
      [{ series: [2, 1], fill: colour("--denied-soft") }]),
    chart("latency-chart", latency,
      [
        { ...area, stroke: colour("--p50"), fill: undefined },
        { ...area, stroke: colour("--p99") },
      ],
      { least: 10, axis: (us) => (us ? short(us) : "0"), value: span, parts: (all) => all, drawn: (all) => all },
      ["at-p50", "at-p99"]),
  ];
  draw();
}

const rounded = (value) => (value >= 1e6 ? `${value / 1e6} M` : value >= 1e4 ? `${value / 1e3} k` : `${value}`);
const short = (us) => (us >= 1e6 ? `${us / 1e6} s` : us >= 1e3 ? `${us / 1e3} ms` : `${us} µs`);

/** How many points there are, and how many seconds the chart spans: for tests. */
export const extent = () => [decisions.times.length, shown()[1] - shown()[0]];
