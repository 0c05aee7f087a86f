// SPDX-License-Identifier: MIT OR Apache-2.0
// Puts the page together from its two documents.

/** A document in the page; one that cannot be read must not take the rest down with it. */
function readDocument(id) {
  try {
    return JSON.parse(byId(id).textContent);
  } catch (error) {
    console.error(`${id}: ${error.message}`);
    return null;
  }
}

const LEGEND = [
  [STATE.RUNNING, 'running'],
  [STATE.RUNNABLE, 'waiting for a CPU'],
  [STATE.PREEMPTED, 'preempted'],
  [STATE.BLOCKED, 'blocked'],
  [STATE.UNKNOWN, 'unknown'],
  [STATE.MISSED, 'missed'],
  [HIDDEN, 'more switches than pixels'],
];

/** What the page has no room for: said, so that an empty stretch is not taken for rest. */
function showUndrawn({ intervals, marks }) {
  const parts = [];
  if (intervals) parts.push(plural(intervals, 'interval of a thread', 'intervals of threads'));
  if (marks) parts.push(plural(marks, 'element of a sensor', 'elements of sensors'));
  if (!parts.length) return;
  const holder = byId('undrawn');
  holder.hidden = false;
  holder.textContent = `Not in the picture: the last ${parts.join(' and the last ')}, for want of room. Tables and histograms count them, and the trace has them all.`;
}

function showTimeline(model) {
  byId('legend').append(...LEGEND.map(([state, name]) => make('li', '', [make('span', `swatch s${state}`), name])));

  let controls = null;
  const view = new View(model);
  const rows = new Rows(model, byId('rows'), () => {
    fitHeight();
    controls?.changed();
  });
  // As high as the rows need, as far as the window has room; the user may pull it larger.
  const scroller = byId('scroller');
  function fitHeight() {
    const room = Math.max(240, Math.round(window.innerHeight * 0.62));
    scroller.style.height = `${Math.max(72, Math.min(rows.height, room))}px`;
    scroller.style.maxHeight = `${Math.max(72, rows.height)}px`;
  }
  fitHeight();
  const timeline = new Timeline(model, rows, view);
  controls = new Controls(view, timeline, rows);

  const resize = () => {
    timeline.resize();
    controls.changed();
  };
  new ResizeObserver(resize).observe(scroller);
  window.addEventListener('resize', resize);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', resize);
  controls.drawNow();
  return { view, rows, timeline, controls };
}

/** What tests, and the curious in the console, may ask and do. */
function expose({ view, rows, timeline, controls }) {
  const number = (name, value) => {
    if (!Number.isFinite(value)) throw new TypeError(`${name} must be a number of nanoseconds`);
    return value;
  };
  window.overhear = {
    get primitives() { return timeline.primitives; },
    get frames() { return timeline.frames; },
    get bound() { return timeline.bound; },
    get view() { return { from: view.from, to: view.to }; },
    get extent() { return view.extent; },
    /** The rows shown, with how many pixel columns of each hide switches. */
    get rows() { return rows.visible.map(({ kind, name, detail, top, height, hidden }) => ({ kind, name, detail, top, height, hidden })); },
    setView(from, to) {
      view.set(number('from', from), number('to', to));
      controls.drawNow();
    },
    setMeter(a, b) {
      controls.setMeter(0, number('a', a));
      controls.setMeter(1, number('b', b));
      controls.drawNow();
    },
    get meter() { return [...view.meter]; },
    meterText: () => view.meterText(),
    fit() {
      view.set(0, view.extent);
      controls.drawNow();
    },
    ready: true,
  };
}

const report = readDocument('report-data') ?? {};
showSummary(report);
showLosses(report);
showNotes(report);
showHistograms(report);
showTables(report);
showSources(report);

const model = decodeTimeline(readDocument('timeline-data'), report);
if (model && (model.processes.length || model.hostGaps.length)) {
  showUndrawn(model.undrawn);
  expose(showTimeline(model));
} else {
  byId('panel').hidden = true;
  byId('timeline-empty').hidden = false;
  byId('timeline-empty').textContent = model
    ? 'The time-line is empty: no thread and no sensor was heard.'
    : 'No time-line was recorded for this run.';
  window.overhear = { ready: true, primitives: 0, frames: 0, bound: 0, rows: [] };
}
