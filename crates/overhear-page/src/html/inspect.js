// SPDX-License-Identifier: MIT OR Apache-2.0
// Facts about one moment of a row: the content of the tooltip, and the place of the next change,
// for stepping through a row by keyboard.

const MOST_FIELDS = 12;
const MOST_GAPS = 4;

/** Facts about `row` at `t`. `reach` is the distance in time within which an element counts as hit,
 *  `perPixel` the time of one pixel, `y` the distance below the row's top. With `exact`, `t` is
 *  exact to the nanosecond. */
function inspect(row, t, perPixel, reach, exact, y = 0) {
  if (row.gaps) {
    const gaps = row.gaps.near(t, reach);
    if (gaps.length) return inspectGaps(gaps);
  }
  if (row.kind === 'thread') return inspectThread(row, t, perPixel, exact);
  if (row.kind === 'cpu') return inspectCpu(row, t, perPixel, exact);
  if (row.kind === 'sensor' && row.mode === 'bars') return inspectJob(row, t);
  if (row.kind === 'sensor') return (row.mode === 'spans' && inspectSpan(row, t, y)) || inspectSensor(row, t, perPixel, reach);
  return null;
}

function inspectThread(row, t, perPixel, exact) {
  const { intervals } = row;
  const at = intervals.find(t);
  if (at < 0 || at >= intervals.count) return null;
  // The column that shows t begins at a multiple of the pixel only by chance; the pointer stands
  // for half a pixel on either side.
  const from = t - perPixel / 2;
  const to = t + perPixel / 2;
  const changes = lowerBound(intervals.starts, to) - upperBound(intervals.starts, from);
  if (changes > 1 && !exact) {
    const before = intervals.sumsUntil(from, new Float64Array(STATES));
    const after = intervals.sumsUntil(to, new Float64Array(STATES));
    const facts = [['At', formatExact(Math.round(t))], ['Within', formatDuration(perPixel)]];
    for (let s = 1; s < STATES; s += 1) {
      const share = (after[s] - before[s]) / perPixel;
      if (share > 0) facts.push([STATE_NAMES[s], formatShare(share)]);
    }
    return { title: row.name, state: HIDDEN, headline: `${formatCount(changes)} changes in this pixel`, facts, note: 'Zoom in to see each of them.' };
  }
  const state = intervals.stateAt(at);
  const start = intervals.starts[at];
  const facts = [['Duration', formatDuration(intervals.starts[at + 1] - start)], ['Start', formatExact(start)]];
  if (intervals.cpus[at] !== NO_CPU) facts.push(['CPU', String(intervals.cpus[at])]);
  const reason = reasonFact(row.run, intervals.reasonAt(at), start);
  if (reason) facts.push(reason);
  const woken = state === STATE.RUNNING && !reason ? intervals.reasonAt(at - 1) : null;
  if (woken?.[0] === 'woken') facts.push(reasonFact(row.run, woken, start));
  return { title: row.name, state, headline: STATE_NAMES[state], facts };
}

function inspectCpu(row, t, perPixel, exact) {
  const { cpu, run } = row;
  const { intervals } = cpu;
  const at = intervals.find(t);
  const untracked = 'none of the threads followed';
  if (at < 0 || at >= intervals.count) return { title: row.name, state: STATE.ABSENT, headline: untracked, facts: [['At', formatExact(Math.round(t))]] };
  const [from, to] = [t - perPixel / 2, t + perPixel / 2];
  const changes = lowerBound(intervals.starts, to) - upperBound(intervals.starts, from);
  if (changes > 1 && !exact) {
    const share = intervals.between(from, to)[STATE.RUNNING] / perPixel;
    const facts = [['At', formatExact(Math.round(t))], ['Within', formatDuration(perPixel)], ['busy', formatShare(share)]];
    return { title: row.name, state: HIDDEN, headline: `${formatCount(changes)} changes in this pixel`, facts, note: 'Zoom in to see each of them.' };
  }
  const facts = [['Duration', formatDuration(intervals.starts[at + 1] - intervals.starts[at])], ['Start', formatExact(intervals.starts[at])]];
  if (intervals.states[at] !== STATE.RUNNING) return { title: row.name, state: STATE.ABSENT, headline: untracked, facts };
  const thread = run.threads[cpu.owners[at]];
  facts.unshift(['Process', `${run.processes.get(thread.pid)?.comm ?? ''} ${thread.pid}`]);
  return { title: row.name, state: STATE.RUNNING, headline: `${thread.comm || 'thread'} ${thread.tid}`, facts };
}

function inspectSpan(row, t, y) {
  const span = row.spans?.at(Math.max(0, Math.floor((y - BAR_INSET) / LANE_STEP)), t);
  if (!span) return null;
  const [from, to, at, end] = span;
  const facts = [['Duration', formatDuration(to - from)], ['Start', formatExact(from)]];
  row.elements.fields.slice(0, MOST_FIELDS).forEach((field, index) => {
    if (index !== row.spanFields.edge && index !== row.spanFields.length) facts.push([field.name, fieldText(row, field, at)]);
  });
  if (end === null) facts.push(['End', to < row.run.extent ? 'not told' : 'goes on']);
  const value = row.returns && end !== null ? row.returns.fields.find((field) => field.name === 'value') : undefined;
  if (value) facts.push(['returns', String(value.values[end])]);
  const note = row.spans.crowded ? `${plural(row.spans.crowded, 'span')} had no room below the others.` : '';
  return { title: row.name, state: -1, headline: row.type, facts, note };
}

/** The job at `t`, or the one before a pause; with the anomaly that it begins or continues. */
function inspectJob(row, t) {
  const { jobs, elements } = row;
  const job = jobs.at(t);
  if (job < 0) return null;
  const end = elements.times[job];
  const facts = elements.fields.slice(0, MOST_FIELDS).map((field) => [field.name, fieldText(row, field, job)]);
  facts.push(['End', formatExact(end)]);
  const at = end + row.run.origin;
  const anomaly = row.anomalies.find((one) => one.end_ns <= at && at <= one.last_end_ns);
  const isAnomalous = anomaly !== undefined;
  return { title: row.name, state: isAnomalous ? STATE.MISSED : -1, headline: `${isAnomalous ? 'anomalous job' : 'job'} ${formatCount(job + 1)}`, facts, note: isAnomalous ? String(anomaly.message ?? '') : '' };
}

function inspectSensor(row, t, perPixel, reach) {
  const { elements } = row;
  const at = elements.nearest(t);
  if (at < 0 || Math.abs(elements.times[at] - t) > reach) return null;
  const facts = [];
  for (const field of elements.fields.slice(0, MOST_FIELDS)) {
    facts.push([field.name, fieldText(row, field, at)]);
  }
  if (elements.fields.length > MOST_FIELDS) facts.push(['and', plural(elements.fields.length - MOST_FIELDS, 'more field')]);
  facts.push(['Time', formatExact(elements.times[at])]);
  const sequence = elements.sequence(at);
  if (sequence !== null) facts.push(['Sequence', formatCount(sequence)]);
  const there = lowerBound(elements.times, t + perPixel / 2) - lowerBound(elements.times, t - perPixel / 2);
  const note = there > 1 ? `${plural(there, 'element')} in this pixel: this is the nearest.` : '';
  return { title: row.name, state: -1, headline: row.type, facts, note };
}

function inspectGaps(gaps) {
  const missed = gaps.reduce((sum, gap) => sum + gap.missed, 0);
  const facts = [];
  for (const gap of gaps.slice(0, MOST_GAPS)) {
    facts.push([gap.label || 'stream', `${formatCount(gap.missed)} ${gap.cause}`]);
    facts.push(['from', formatExact(gap.from)], ['to', formatExact(gap.to)]);
  }
  const note = gaps.length > MOST_GAPS ? `and ${plural(gaps.length - MOST_GAPS, 'more gap')}` : '';
  return { title: 'Missed', state: STATE.MISSED, headline: `${plural(missed, 'element')} missed`, facts, note };
}

/** The facts in one line, for screen readers. */
function inspectText(found) {
  const facts = found.facts.map(([name, value]) => `${name} ${value}`).join(', ');
  return `${found.title}: ${found.headline}. ${facts}. ${found.note ?? ''}`;
}

/** The time of the row's next change or element after `t`, or before it. */
function nextChange(row, t, forward) {
  const spans = row.mode === 'spans' ? row.spans?.lanes[0]?.intervals.starts : null;
  const bars = row.mode === 'bars' ? row.jobs.intervals.starts : null;
  const times = row.intervals?.starts ?? spans ?? bars ?? row.elements?.times ?? row.gaps?.intervals.starts;
  if (!times || !times.length) return null;
  const index = forward ? upperBound(times, t) : lowerBound(times, t) - 1;
  return index >= 0 && index < times.length ? times[index] : null;
}

/** The row's change nearest to `t` within `reach`, else `t` itself. Metering lines snap to it. */
function snap(row, t, reach) {
  if (!row) return t;
  const before = nextChange(row, t + 0.5, false);
  const after = nextChange(row, t, true);
  let best = t;
  let distance = reach;
  for (const edge of [before, after]) {
    if (edge !== null && Math.abs(edge - t) <= distance) {
      best = edge;
      distance = Math.abs(edge - t);
    }
  }
  return best;
}
