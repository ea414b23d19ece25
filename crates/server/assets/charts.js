// Two charts of the last two minutes, and the legends that tell what is under the pointer.

import { rate, span } from "/dashboard/words.js";

const SECONDS = 120;
const uPlot = window.uPlot;

/** What is drawn: times in seconds, and a row for each line. */
const decisions = { times: [], rows: [[], []] };
const latency = { times: [], rows: [[], []] };

let charts = [];
/** The time at the right edge. */
let last = Date.now() / 1000;

/** Adds a point to both charts; `undefined` is a gap. */
export function add(at, allowed, denied, p50, p99) {
  push(decisions, at, [allowed, allowed === undefined ? undefined : allowed + denied]);
  push(latency, at, [p50, p99]);
  last = at;
  for (const chart of charts) chart.draw();
}

function push({ times, rows }, at, values) {
  times.push(at);
  values.forEach((value, index) => rows[index].push(value));
  while (times[0] < at - SECONDS - 2) {
    times.shift();
    rows.forEach((row) => row.shift());
  }
}

/** Draws the charts in the colours that the page has now. */
export function start() {
  charts.forEach((chart) => chart.plot.destroy());
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const [ink, line] = [colour("--soft"), colour("--line")];
  const axis = { stroke: ink, font: "12px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const chart = (id, data, series, shown, told, bands) => {
    const place = document.getElementById(id);
    const size = () => ({ width: place.clientWidth, height: place.clientHeight });
    const legend = told.map((id) => document.getElementById(id));
    const options = {
      ...size(),
      series: [{}, ...series],
      bands,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      padding: [8, 24, 0, 0],
      scales: {
        x: { range: () => [last - SECONDS, last] },
        y: { range: (_, __, most) => [0, Math.max(most ?? 0, shown.least) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 28, space: 70, values: (_, at) => at.map(clock) },
        { ...axis, size: 62, space: 42, values: (_, values) => values.map(shown.axis) },
      ],
      hooks: { setCursor: [(plot) => tell(plot)] },
    };
    const tell = (plot) => {
      const at = plot.cursor.idx ?? data.times.length - 1;
      const values = shown.parts(data.rows.map((row) => row[at]));
      legend.forEach((it, index) => (it.textContent = values[index] === undefined ? "–" : shown.value(values[index])));
    };
    const plot = new uPlot(options, [data.times, ...data.rows], place);
    const draw = () => {
      plot.setData([data.times, ...data.rows]);
      tell(plot);
    };
    new ResizeObserver(() => plot.setSize(size())).observe(place);
    return { plot, draw };
  };
  const area = { width: 1.5, points: { show: false }, spanGaps: false };
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
        // The second line is the sum of both: what is denied lies between.
        parts: ([allowed, both]) => [allowed, both === undefined ? undefined : both - allowed],
      },
      ["at-allowed", "at-denied"],
      [{ series: [2, 1], fill: colour("--denied-soft") }]),
    chart("latency-chart", latency,
      [
        { ...area, stroke: colour("--fast"), fill: undefined },
        { ...area, stroke: colour("--slow") },
      ],
      { least: 10, axis: (us) => (us ? short(us) : "0"), value: span, parts: (all) => all },
      ["at-p50", "at-p99"]),
  ];
  charts.forEach((chart) => chart.draw());
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
const rounded = (value) => (value >= 1e6 ? `${value / 1e6} M` : value >= 1e4 ? `${value / 1e3} k` : `${value}`);
const short = (us) => (us >= 1e6 ? `${us / 1e6} s` : us >= 1e3 ? `${us / 1e3} ms` : `${us} µs`);
