// SPDX-License-Identifier: MIT OR Apache-2.0
// Statistics of the time between two moments: per thread the time in each state and the switches,
// per CPU its busy time, per sensor its elements and their values. Sums that are kept for blocks
// make this as cheap for a long interval as for a short one.

const MOST_ROWS = 60;
// A panel higher than this many pixels scrolls, unless the user pulls it larger.
const MOST_PIXELS = 300;

/** The account of one thread between two moments. */
function threadStatistics(row, from, to) {
  const { intervals } = row;
  const time = intervals.between(from, to);
  const first = lowerBound(intervals.starts, from);
  const end = lowerBound(intervals.starts, to);
  const begun = (state) => (end > first ? intervals.countUntil(end, state) - intervals.countUntil(first, state) : 0);
  return {
    row,
    run: time[STATE.RUNNING],
    waiting: time[STATE.RUNNABLE],
    preempted: time[STATE.PREEMPTED],
    blocked: time[STATE.BLOCKED],
    unknown: time[STATE.UNKNOWN],
    runs: begun(STATE.RUNNING),
    wakeups: begun(STATE.RUNNABLE),
    preemptions: begun(STATE.PREEMPTED),
  };
}

/** The lengths of the spans that overlap the time between two moments: minimum, mean and
 *  maximum. */
function spanStatistics(row, lanes, from, to) {
  let [low, high, sum, count] = [Infinity, -Infinity, 0, 0];
  for (const { intervals, members } of lanes) {
    const end = Math.min(intervals.count, lowerBound(intervals.starts, to));
    for (let i = Math.max(0, intervals.find(from)); i < end; i += 1) {
      if (!members[i] || members[i][1] < from) continue;
      const length = members[i][1] - members[i][0];
      low = Math.min(low, length);
      high = Math.max(high, length);
      sum += length;
      count += 1;
    }
  }
  return count ? { field: 'duration', unit: 'ns', low, high, mean: sum / count } : null;
}

/** The account of one sensor between two moments. */
function sensorStatistics(rows, row, from, to) {
  const { times, fields } = row.elements;
  const first = lowerBound(times, from);
  const end = lowerBound(times, to);
  const field = fields[row.field];
  const count = end - first;
  const found = { row, count, rate: count / ((to - from) / 1e9), field: null };
  if (row.mode === 'spans') Object.assign(found, spanStatistics(row, rows.spansOf(row).lanes, from, to));
  else if (field?.number && count) {
    const { low, high, sum } = field.series.range(first, end);
    if (low <= high) Object.assign(found, { field: field.name, unit: field.unit, low, high, mean: sum / count });
  }
  return found;
}

/** All statistics, for the rows that are shown. */
function intervalStatistics(rows, [from, to]) {
  const shown = rows.all.filter((row) => row.shown || (row.group?.collapsed && row.kind !== 'process'));
  return {
    from,
    to,
    threads: shown.filter((row) => row.kind === 'thread').map((row) => threadStatistics(row, from, to)),
    cpus: shown.filter((row) => row.kind === 'cpu').map((row) => ({ row, busy: row.intervals.between(from, to)[STATE.RUNNING] })),
    sensors: shown.filter((row) => row.kind === 'sensor').map((row) => sensorStatistics(rows, row, from, to)),
  };
}

/** The panel below the time-line. It follows the view a moment later: a table that is rebuilt in
 *  every frame of a drag cannot be read. */
class StatisticsPanel {
  constructor(view, rows) {
    this.view = view;
    this.rows = rows;
    this.panel = byId('statistics');
    this.timer = 0;
    this.height = 0;
    this.panel.addEventListener('toggle', () => this.changed());
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.show(), 80);
  }

  show() {
    const { view, rows } = this;
    const [a, b] = view.meter;
    const isMeter = a !== null && b !== null && a !== b;
    const [from, to] = view.interval;
    byId('statistics-what').textContent = isMeter ? 'between the lines' : 'in view';
    byId('statistics-span').textContent = `${formatDuration(to - from)} from ${formatExact(Math.round(from))}`;
    if (!this.panel.open) return;
    const found = intervalStatistics(rows, [from, to]);
    byId('statistics-body').replaceChildren(...[this.#threads(found, to - from), this.#cpus(found, to - from), this.#sensors(found)].filter((part) => part));
    this.#fitHeight();
  }

  /** Sets the height to the largest one so far, up to a bound. It never shrinks, so that nothing
   *  below jumps while the view moves; a height that the user has chosen stays. */
  #fitHeight() {
    const { style } = byId('statistics-body');
    const chosen = style.height !== '' && style.height !== `${this.height}px`;
    if (chosen || this.height >= MOST_PIXELS) return;
    style.height = 'auto';
    this.height = Math.max(this.height, Math.min(MOST_PIXELS, byId('statistics-body').offsetHeight));
    style.height = `${this.height}px`;
  }

  #table(title, heads, rows, note) {
    const head = make('tr', '', heads.map(([name, isNumber]) => {
      const cell = make('th', isNumber ? 'number' : '', name);
      cell.scope = 'col';
      return cell;
    }));
    const table = make('table', 'loss-table', [make('caption', 'visually-hidden', title), make('thead', '', [head]), make('tbody', '', rows)]);
    const parts = [make('div', 'table-scroll', [table])];
    if (note) parts.push(make('p', 'notice', note));
    return make('div', 'statistics-part', parts);
  }

  #cells(row, cells) {
    const prefix = this.rows.runs.length > 1 ? `${'AB'[this.rows.runs.indexOf(row.run)]} ` : '';
    const name = make('th', '', `${prefix}${row.name}${row.kind === 'thread' ? ` ${row.detail}` : row.owner ? ` of ${row.owner}` : ''}`);
    name.scope = 'row';
    return make('tr', '', [name, ...cells]);
  }

  #share(ns, all) {
    const cell = make('td', 'number with-bar', ns > 0 ? formatDuration(ns, true) : DASH);
    cell.style.setProperty('--share', String(Math.min(1, ns / all)));
    return cell;
  }

  #number(value) {
    return make('td', 'number', value ? formatCount(value) : DASH);
  }

  #threads({ threads }, span) {
    const active = threads.filter((one) => one.run + one.waiting + one.preempted + one.unknown > 0);
    if (!active.length) return null;
    active.sort((a, b) => b.run - a.run);
    const rows = active.slice(0, MOST_ROWS).map((one) => this.#cells(one.row, [
      this.#share(one.run, span),
      this.#share(one.waiting, span),
      this.#share(one.preempted, span),
      this.#share(one.blocked, span),
      this.#number(one.runs),
      this.#number(one.wakeups),
      this.#number(one.preemptions),
    ]));
    const left = threads.length - rows.length;
    const heads = [['Thread'], ['Running', true], ['Waiting', true], ['Preempted', true], ['Blocked', true], ['Runs', true], ['Wake-ups', true], ['Preemptions', true]];
    const notes = [];
    if (left) notes.push(`${plural(left, 'more thread')} ran less, or not at all.`);
    if (active.some((one) => !one.row.run.recordsWakeups)) notes.push('Wake-ups were not heard: a thread counts as blocked until it runs.');
    return this.#table('Threads', heads, rows, notes.join(' '));
  }

  #cpus({ cpus }, span) {
    if (!cpus.length) return null;
    const rows = cpus.map(({ row, busy }) => this.#cells(row, [this.#share(busy, span), make('td', 'number', formatShare(busy / span))]));
    return this.#table('CPUs', [['CPU'], ['Busy', true], ['Share', true]], rows);
  }

  #sensors({ sensors }) {
    const active = sensors.filter((one) => one.count || one.field);
    if (!active.length) return null;
    const rows = active.slice(0, MOST_ROWS).map((one) => this.#cells(one.row, [
      this.#number(one.count),
      make('td', 'number', `${formatDigits(one.rate, 4)}${THIN}Hz`),
      make('td', '', one.field ?? ''),
      ...['low', 'mean', 'high'].map((name) => make('td', 'number', one.field ? formatValue(one[name], one.unit) : DASH)),
    ]));
    const heads = [['Sensor'], ['Elements', true], ['Rate', true], ['Field'], ['Least', true], ['Mean', true], ['Greatest', true]];
    return this.#table('Sensors', heads, rows);
  }
}
