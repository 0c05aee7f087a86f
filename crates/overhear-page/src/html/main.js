// SPDX-License-Identifier: MIT OR Apache-2.0
// Builds the page from its documents.

/** A document in the page; an invalid one must not break the rest. */
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

/** The parts of the runs that the time-line leaves out, so that an empty stretch is not taken for
 *  rest. */
function showLeftOut(runs) {
  const messages = [...new Set(runs.flatMap((run) => run.leftOut))];
  const holder = byId('left-out');
  holder.hidden = !messages.length;
  holder.textContent = messages.join(' ');
}

function showReport(report) {
  showSummary(report);
  showVerdicts(report);
  showLosses(report);
  showNotes(report);
  showMonitor(report);
  showBudget(report);
  showHistograms(report);
  showTables(report);
  showSamplers(report);
  showSources(report);
}

function showTimeline(runs, report, time) {
  byId('legend').replaceChildren(...LEGEND.map(([state, name]) => make('li', '', [make('span', `swatch s${state}`), name])));

  let controls = null;
  const view = new View(Math.max(...runs.map((run) => run.extent)));
  const rows = new Rows(runs, byId('rows'), () => {
    fitHeight();
    controls?.changed();
  });
  // As high as the rows need, if the window has room; the user may pull it larger.
  const scroller = byId('scroller');
  function fitHeight() {
    const room = Math.max(240, Math.round(window.innerHeight * 0.62));
    scroller.style.height = `${Math.max(72, Math.min(rows.height, room))}px`;
    scroller.style.maxHeight = `${Math.max(72, rows.height)}px`;
  }
  fitHeight();
  const timeline = new Timeline(rows, view);
  const statistics = new StatisticsPanel(view, rows);
  controls = new Controls(view, timeline, rows, statistics, () => report, time);

  const resize = () => {
    timeline.resize();
    controls.changed();
  };
  new ResizeObserver(resize).observe(scroller);
  window.addEventListener('resize', resize);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', resize);
  const jobChoice = new JobChoice(rows, () => controls.changed());
  if (report.compensated === true) controls.setTime(true);
  controls.drawNow();
  // Shown at once, so that the page has its height from the begin.
  statistics.show();
  return { view, rows, timeline, controls, statistics, fitHeight, jobChoice };
}

/** Properties and methods for tests and for the console. */
function expose({ view, rows, timeline, controls, statistics }, runs, report, live) {
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
    /** The shown time stamps: 'plain' or 'compensated'. */
    get time() { return controls.time.isCompensated ? 'compensated' : 'plain'; },
    setTime(name) {
      controls.setTime(name === 'compensated');
      controls.drawNow();
    },
    /** Number of wake-ups in view, and of their arrows. */
    get wakes() { return { ...timeline.wakes }; },
    /** The shown rows, with the number of pixel columns of each that hide switches. */
    get rows() { return rows.visible.map(({ kind, name, detail, top, height, hidden, mode }) => ({ kind, name, detail, top, height, hidden, mode })); },
    /** The quantity that colours jobs. */
    get jobQuantity() { return rows.jobQuantity; },
    get live() { return live ? { pieces: live.pieces, ended: live.ended, follow: live.follow } : null; },
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
    /** Statistics of the time between two moments, as the panel shows it. */
    statistics(from = view.interval[0], to = view.interval[1]) {
      const named = ({ row, ...rest }) => ({ name: row.name, of: runs.indexOf(row.run), ...rest });
      const found = intervalStatistics(rows, [number('from', from), number('to', to)]);
      return { threads: found.threads.map(named), cpus: found.cpus.map(named), sensors: found.sensors.map(named) };
    },
    showStatistics() { statistics.show(); },
    /** Begin and end of each span that a sensor's row shows, in the order of begins. */
    spans(name) {
      const row = rows.visible.find((one) => one.kind === 'sensor' && one.name === name);
      const members = rows.spansOf(row).lanes.flatMap((lane) => lane.members.filter((span) => span));
      return members.map(([from, to]) => [from, to]).sort((a, b) => a[0] - b[0]);
    },
    svg: () => exportSvg(timeline, rows, report()),
    png: async () => {
      const bytes = new Uint8Array(await (await exportPng(timeline, rows, report())).arrayBuffer());
      let binary = '';
      for (let i = 0; i < bytes.length; i += 1) binary += String.fromCharCode(bytes[i]);
      return btoa(binary);
    },
    ready: true,
  };
}

/** Builds the page from a first run, a second one if given, and later news if there are any. */
function start() {
  let report = readDocument('report-data') ?? {};
  const given = readDocument('timeline-data');
  const options = readDocument('options-data') ?? {};
  const runs = [];
  const documents = [];
  const isTimeline = (raw) => raw && typeof raw === 'object' && !Array.isArray(raw);
  const add = (raw, of, label) => {
    runs.push(new Model(raw, of, String(label ?? '')));
    documents.push(raw);
  };
  if (isTimeline(given)) add(given, report, options.label);
  const otherReport = readDocument('other-report-data');
  const otherGiven = readDocument('other-timeline-data');
  if (runs.length && isTimeline(otherGiven)) add(otherGiven, otherReport, options.other_label);
  showReport(report);
  showComparison(runs);
  showLeftOut(runs);

  const empty = (text) => {
    byId('panel').hidden = Boolean(text);
    byId('timeline-empty').hidden = !text;
    byId('timeline-empty').textContent = text;
  };
  let shown = null;
  const draw = (time) => {
    empty('');
    shown = showTimeline(runs, report, time);
  };
  const latest = () => report;
  if (options.live === true) {
    if (!runs.length) add({}, report);
    const time = new TimeChoice(runs, documents);
    showLive('waiting');
    empty('Nothing was received yet.');
    window.overhear = { ready: false };
    const live = new Live({
      say: showLive,
      take({ timeline, compensated: moved, report: news }) {
        if (news) {
          report = news;
          runs[0].report = news;
          showReport(report);
        }
        const isNew = timeline ? time.append(timeline, moved) : false;
        showLeftOut(runs);
        if (!shown) {
          if (runs[0].isEmpty) return;
          draw(time);
          expose(shown, runs, latest, live);
          return;
        }
        shown.view.grow(time.extent, live.follow);
        if (isNew) {
          shown.rows.update();
          shown.jobChoice.update();
          shown.fitHeight();
          shown.timeline.resize();
        }
        shown.controls.changed();
      },
    });
    byId('follow').addEventListener('click', () => {
      live.follow = !live.follow;
      byId('follow').setAttribute('aria-pressed', String(live.follow));
    });
  } else if (runs.length && runs.some((run) => !run.isEmpty)) {
    draw(new TimeChoice(runs, documents));
    expose(shown, runs, latest, null);
  } else {
    empty(runs.length ? 'The time-line is empty: no thread and no sensor was heard.' : 'No time-line was recorded for this run.');
    window.overhear = { ready: true, primitives: 0, frames: 0, bound: 0, rows: [] };
  }
}

start();
