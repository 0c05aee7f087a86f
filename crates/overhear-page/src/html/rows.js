// SPDX-License-Identifier: MIT OR Apache-2.0
// The rows of the time-line: all rows, the shown ones, and their names in the gutter. The names are
// ordinary elements, so that they can be read, found and focused.

const HEIGHT = Object.freeze({ run: 32, process: 28, thread: 24, cpu: 24, sensor: 24, gaps: 24 });
const GRAPH_HEIGHT = 48;
const SAMPLE_GRAPH_HEIGHT = 40;
const JOBS_HEIGHT = 34;
// If a sensor has more elements than this, they are not searched for spans.
const MOST_SPANS = 1_000_000;
const MODE_NAMES = { marks: 'marks', graph: 'a graph', spans: 'spans', bars: 'bars' };

class Rows {
  /** `onChange` is called when the set of shown rows changes. */
  constructor(runs, holder, onChange) {
    this.runs = runs;
    this.holder = holder;
    this.onChange = onChange;
    this.query = parseQuery('');
    this.parts = 'both';
    this.active = null;
    this.all = [];
    this.groups = [];
    this.visible = [];
    this.height = 0;
    this.known = new Map();
    this.jobQuantity = 'duration';
    this.update();
  }

  /** Shows other models of the same runs: results computed from the elements become invalid. */
  replace() {
    for (const row of this.known.values()) {
      row.gapCount = -1;
      row.spansOf = -1;
    }
    this.update();
  }

  /** Makes rows for new threads and sensors; existing rows keep the user's settings. */
  update() {
    this.groups = [];
    this.all = [];
    this.runs.forEach((run, index) => {
      const banner = this.runs.length > 1 ? this.#row(`run ${index}`, { kind: 'run', run, name: `${'AB'[index]}  ${run.label}`, detail: formatDuration(run.extent) }) : null;
      this.#runGroups(run, index, banner);
    });
    const wanted = new Set(this.all);
    for (const row of this.known.values()) if (!wanted.has(row)) row.element.remove();
    this.holder.append(...this.all.map((row) => row.element));
    this.layout();
  }

  #runGroups(run, index, banner) {
    const key = (name) => `${index} ${name}`;
    const cpus = run.cpus.filter((cpu) => cpu);
    if (cpus.length) {
      const group = this.#group(run, key('cpus'), 'CPUs', formatCount(cpus.length), 'cpus', banner);
      for (const cpu of cpus) {
        group.rows.push(this.#row(key(`cpu ${cpu.number}`), { kind: 'cpu', run, group, name: `CPU ${cpu.number}`, detail: '', cpu, intervals: cpu.intervals }));
      }
    }
    if (run.hostGaps.length) {
      const group = this.#group(run, key('host'), 'All processes', '', 'threads', banner);
      group.rows.push(this.#gapsRow(run, key('host gaps'), group, run.hostGaps));
    }
    for (const process of run.processes.values()) this.#processGroup(run, key, process, banner);
    const ofSystem = [...run.samples.tasks.values()].filter((task) => !task.pid);
    const kernel = run.kernel.filter((sensor) => sensor.type !== SAMPLE_TYPE);
    if (kernel.length || ofSystem.length) {
      const group = this.#group(run, key('kernel'), kernel.length ? 'Kernel' : 'System', '', 'cpus', banner);
      kernel.forEach((sensor) => group.rows.push(this.#sensorRow(run, key(`kernel ${sensor.id}`), group, sensor)));
      for (const task of ofSystem) this.#sampleRows(run, key, group, task, '');
    }
  }

  #processGroup(run, key, process, banner) {
    const { pid, comm, threads, sensors, gaps } = process;
    const group = this.#group(run, key(`process ${pid}`), comm || `process ${pid}`, String(pid), 'threads', banner);
    if (gaps.length) group.rows.push(this.#gapsRow(run, key(`gaps ${pid}`), group, gaps));
    const sampled = new Map([...run.samples.tasks.values()].filter((task) => task.pid === pid).map((task) => [task.tid, task]));
    for (const thread of threads) {
      const { tid, intervals } = thread;
      group.rows.push(this.#row(key(`thread ${thread.index}`), { kind: 'thread', run, group, name: thread.comm || `thread ${tid}`, detail: String(tid), thread, intervals }));
      // The last life of a thread id has the samples: they do not name the others.
      const task = run.byTid.get(tid)?.at(-1) === thread ? sampled.get(tid) : undefined;
      if (task) this.#sampleRows(run, key, group, task, thread.comm);
      if (task) sampled.delete(tid);
    }
    for (const task of sampled.values()) {
      // A thread whose states were not recorded has a row without states, as a head.
      if (task.tid) group.rows.push(this.#row(key(`sampled ${task.tid}`), { kind: 'thread', run, group, name: sampledNames(run).get(task.tid) || `thread ${task.tid}`, detail: String(task.tid), thread: { tid: task.tid, index: -1 }, intervals: new Intervals(0) }));
      this.#sampleRows(run, key, group, task, comm);
    }
    for (const sensor of sensors.filter((one) => one.type !== SAMPLE_TYPE)) group.rows.push(this.#sensorRow(run, key(`sensor ${run.sensors.indexOf(sensor)}`), group, sensor));
    const parts = group.rows.map((row) => row.intervals ?? row.elements).filter((part) => part && part.count);
    group.from = Math.min(...parts.map((part) => (part.times ? part.times[0] : part.first)));
    group.to = Math.max(...parts.map((part) => part.end));
  }

  #group(run, key, name, detail, part, banner) {
    const header = this.#row(key, { kind: 'process', run, name, detail });
    header.group ??= { collapsed: false, header };
    Object.assign(header.group, { run, rows: [], part, banner, from: Infinity, to: -Infinity });
    this.groups.push(header.group);
    return header.group;
  }

  #gapsRow(run, key, group, gaps) {
    const missed = gaps.reduce((sum, gap) => sum + gap.missed, 0);
    const row = this.#row(key, { kind: 'gaps', run, group, name: 'missed', detail: formatCount(missed) });
    if (row.gapCount !== gaps.length) Object.assign(row, { gaps: new Gaps(gaps), gapCount: gaps.length });
    return row;
  }

  /** The rows of a thread's samples: jobs as bars, and a track for each quantity. */
  #sampleRows(run, key, group, task, comm) {
    const of = (what) => key(`samples ${task.pid} ${task.tid} ${what}`);
    const add = (what, name, sampler, elements, facts) => {
      const detail = '';
      const row = this.#row(of(what), { kind: 'sensor', run, group, name, detail, id: sampler.id, type: SAMPLE_TYPE, elements, isOfSamples: true, owner: task.tid ? comm || String(task.tid) : '', ...facts });
      row.search = `${row.search} ${comm} ${sampler.id} ${sampler.instance}`.toLowerCase();
      row.element.classList.add('sample');
      row.element.title = `${name} of ${comm} ${task.tid || 'process'}, sampled by ${sampler.id}`;
      row.label = row.element.title;
      if (row.gapCount !== sampler.elements.gaps.length) {
        Object.assign(row, { gaps: sampler.elements.gaps.length ? new Gaps(sampler.elements.gaps) : null, gapCount: sampler.elements.gaps.length });
      }
      row.labelField = 0;
      row.spanFields = null;
      group.rows.push(row);
      return row;
    };
    for (const [place, jobs] of task.jobs) {
      const { elements } = jobs.buffer;
      const name = task.jobs.size > 1 ? `jobs ${jobs.sampler.id}` : 'jobs';
      const row = add(`jobs ${place}`, name, jobs.sampler, elements, { jobs, anomalies: anomaliesOf(run, jobs.sampler, task), detail: formatCount(elements.count) });
      row.modes = ['bars', 'graph'];
      this.#chooseJobField(row);
    }
    for (const [place, track] of task.tracks) {
      // A track of a thread is beneath it; others need a name of their own.
      const name = task.tid ? track.id : `${track.id} (${task.pid ? 'process' : 'system'})`;
      const row = add(`track ${place}`, name, track.sampler, track.elements, {});
      row.modes = ['graph', 'marks'];
      row.field = 0;
      this.setMode(row, row.mode ?? 'graph');
    }
  }

  #chooseJobField(row) {
    const found = row.elements.fields.findIndex((field) => field.name === this.jobQuantity);
    row.field = Math.max(0, found);
    this.setMode(row, row.mode ?? 'bars');
  }

  /** Chooses the quantity that colours the jobs. */
  setJobQuantity(name) {
    this.jobQuantity = name;
    for (const row of this.all) if (row.jobs) this.#chooseJobField(row);
  }

  #sensorRow(run, key, group, sensor) {
    const { id, instance, type, elements } = sensor;
    const name = instance === '' || instance === null ? id : `${id} ${instance}`;
    const row = this.#row(key, { kind: 'sensor', run, group, name: name || 'sensor', detail: formatCount(elements.count), id, type, elements });
    if (row.gapCount !== elements.gaps.length) {
      Object.assign(row, { gaps: elements.gaps.length ? new Gaps(elements.gaps) : null, gapCount: elements.gaps.length });
    }
    const returns = group.part === 'cpus' && isCalls(id) ? run.kernel.find((one) => one.id === `${id}/return` && one.instance === instance)?.elements : undefined;
    const isOther = returns !== row.returns;
    row.returns = returns;
    if (!row.modes || isOther) this.#chooseMode(row);
    else if (row.mode !== 'marks') this.setMode(row, row.mode);
    return row;
  }

  /** Chooses how a sensor's row is drawn. A number with a unit has a course; a number without one
   *  is usually an id or a kind. */
  #chooseMode(row) {
    const { fields, count } = row.elements;
    const isKernel = row.group.part === 'cpus';
    row.spanFields = count <= MOST_SPANS ? spanFields(fields, row.type, isKernel, row.returns) : null;
    const isQuantity = (field) => field.number && field.unit !== '' && field.unit !== 'hex';
    // Numbers in the kernel's elements are ids and kinds, except in those of probes; statistics of
    // ids have no meaning.
    const isPlain = (field) => field.number && (isKernel ? isProbe(row.id) && /^(argument_1|value)$/.test(field.name) : !isFrame(field.name));
    const quantity = fields.findIndex(isQuantity);
    row.field = quantity >= 0 ? quantity : fields.findIndex(isPlain);
    const telling = isKernel ? fields.findIndex((field) => field.name === TELLING[row.type]) : fields.findIndex((field) => !isFrame(field.name));
    row.labelField = Math.max(0, telling);
    const hasUnit = quantity >= 0;
    const hasNumber = row.field >= 0 && fields[row.field].series.high > fields[row.field].series.low;
    row.modes = ['marks'];
    if (hasNumber) row.modes.push('graph');
    if (row.spanFields) row.modes.push('spans');
    this.setMode(row, row.spanFields ? 'spans' : hasNumber && hasUnit ? 'graph' : 'marks');
  }

  setMode(row, mode) {
    row.mode = mode;
    row.height = { marks: HEIGHT.sensor, bars: JOBS_HEIGHT, graph: row.isOfSamples ? SAMPLE_GRAPH_HEIGHT : GRAPH_HEIGHT, spans: 8 + 16 * (mode === 'spans' ? this.spansOf(row).lanes.length : 1) }[mode];
    row.element.classList.toggle('graph', mode === 'graph' || mode === 'bars');
    const button = row.element.querySelector('.mode');
    const next = row.modes[(row.modes.indexOf(mode) + 1) % row.modes.length];
    button.hidden = row.modes.length < 2;
    button.textContent = { marks: '◆', graph: '◢', spans: '▬', bars: '▦' }[mode];
    button.title = `Drawn as ${MODE_NAMES[mode]}; press for ${MODE_NAMES[next]}`;
    button.setAttribute('aria-label', `${row.name}: ${button.title}`);
    const field = row.elements.fields[row.field];
    const scale = row.element.querySelector('.scale');
    scale.hidden = mode !== 'graph' && mode !== 'bars';
    if (!scale.hidden) {
      const { unit, series } = field;
      if (row.isOfSamples) {
        const name = row.jobs ? `${field.name} ` : '';
        scale.textContent = `${name}${formatShort(series.low, unit)} … ${formatShort(series.high, unit)}`;
        return;
      }
      // Nanoseconds choose their own unit, which may differ between the two ends.
      scale.textContent = `${field.name} ${formatValue(series.low, unit === 'ns' ? unit : '')} … ${formatValue(series.high, unit)}`;
    }
  }

  /** A sensor's spans, computed again when there are more elements. */
  spansOf(row) {
    const { run, elements, returns } = row;
    const count = elements.count + (returns?.count ?? 0);
    if (row.spansOf !== count) {
      row.spans = new Spans(elements, row.spanFields, { now: run.extent, endOf: (tid, t) => run.endOf(tid, t), returns });
      row.spansOf = count;
    }
    return row.spans;
  }

  /** The row of this key: the existing one with updated facts, or a new one. */
  #row(key, facts) {
    const known = this.known.get(key);
    const row = Object.assign(known ?? { height: HEIGHT[facts.kind], hidden: 0 }, facts);
    this.all.push(row);
    const what = { run: 'Run', process: 'Process', thread: 'Thread', cpu: '', sensor: 'Sensor', gaps: 'Losses' }[row.kind];
    row.search = `${row.name} ${row.detail} ${row.type ?? ''}`.toLowerCase();
    row.label = `${what} ${row.name} ${row.detail}`.trim();
    if (!known) {
      this.known.set(key, row);
      this.#element(row);
    }
    row.element.querySelector('.name').textContent = row.name;
    row.element.querySelector('.detail').textContent = row.detail;
    row.element.title = row.kind === 'sensor' ? `${row.label} elements, ${row.type}` : row.label;
    return row;
  }

  #element(row) {
    const name = make('span', 'name');
    const detail = make('span', 'detail');
    if (row.kind === 'process') {
      row.element = make('button', 'row process', [make('span', 'chevron'), name, detail]);
      row.element.type = 'button';
      row.element.setAttribute('aria-expanded', 'true');
      row.element.addEventListener('click', () => this.toggle(row.group));
    } else if (row.kind === 'sensor') {
      const button = make('button', 'mode');
      button.type = 'button';
      button.addEventListener('click', () => {
        this.setMode(row, row.modes[(row.modes.indexOf(row.mode) + 1) % row.modes.length]);
        this.layout();
        this.onChange();
      });
      row.element = make('div', 'row sensor', [make('span', 'names', [name, make('span', 'scale')]), button, detail]);
    } else {
      row.element = make('div', `row ${row.kind}`, [make('span', 'glyph'), name, detail]);
    }
  }

  toggle(group) {
    group.collapsed = !group.collapsed;
    group.header.element.setAttribute('aria-expanded', String(!group.collapsed));
    this.layout();
    this.onChange();
  }

  setFilter(text) {
    this.query = parseQuery(text);
    this.layout();
    this.onChange();
  }

  /** Sets the kind of rows: 'threads', 'cpus' or 'both'. */
  setParts(parts) {
    this.parts = parts;
    this.layout();
    this.onChange();
  }

  /** Shows only rows with activity between two moments, or all rows with null. */
  setActive(interval) {
    this.active = interval;
    this.layout();
    this.onChange();
  }

  #isActive(row) {
    if (!this.active) return true;
    const [from, to] = this.active;
    if (row.kind === 'sensor') return lowerBound(row.elements.times, to) > lowerBound(row.elements.times, from);
    if (row.kind === 'gaps') return row.gaps.members.some((gap) => gap.from < to && gap.to >= from);
    const sums = row.intervals.between(from, to);
    return sums[STATE.RUNNING] + sums[STATE.RUNNABLE] + sums[STATE.PREEMPTED] > 0;
  }

  /** A process whose own name matches is shown with all its rows. A collapsed one opens for a
   *  match, and is collapsed again afterwards. */
  layout() {
    const { query, parts } = this;
    this.visible = [];
    for (const row of this.all) row.shown = false;
    const show = (row) => {
      row.shown = true;
      row.index = this.visible.length;
      this.visible.push(row);
    };
    for (const group of this.groups) {
      if (parts !== 'both' && group.part !== parts) continue;
      const whole = query.matches(group.header.search, group.header.kind);
      const rows = group.rows.filter((row) => (whole || query.matches(row.search, row.kind)) && this.#isActive(row));
      if (!rows.length && (!whole || this.active)) continue;
      if (group.banner && !group.banner.shown) show(group.banner);
      show(group.header);
      if (!group.collapsed || query.isFilter) rows.forEach(show);
    }
    let top = 0;
    for (const row of this.visible) {
      row.top = top;
      row.element.style.top = `${top}px`;
      row.element.style.height = `${row.height}px`;
      top += row.height;
    }
    for (const row of this.all) row.element.hidden = !row.shown;
    this.height = top;
    this.holder.style.height = `${top}px`;
  }

  /** The row at `y`, counted from the top of the first row, or null. */
  at(y) {
    if (y < 0 || y >= this.height) return null;
    let low = 0;
    let high = this.visible.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.visible[middle].top <= y) low = middle + 1;
      else high = middle;
    }
    return this.visible[low - 1] ?? null;
  }

  /** The rows that are at least partly between `top` and `bottom`. */
  between(top, bottom) {
    const first = this.at(Math.max(0, top));
    if (!first) return [];
    const found = [];
    for (let i = first.index; i < this.visible.length && this.visible[i].top < bottom; i += 1) found.push(this.visible[i]);
    return found;
  }

  /** The row of a thread, if it is shown. */
  ofThread(run, thread) {
    const row = this.known.get(`${this.runs.indexOf(run)} thread ${thread.index}`);
    return row?.shown ? row : null;
  }

  /** "12 of 40 rows", or nothing while there is no filter. */
  matchText() {
    if (!this.query.isFilter && !this.active) return '';
    const isRow = (row) => row.kind !== 'process' && row.kind !== 'run';
    return `${formatCount(this.visible.filter(isRow).length)} of ${plural(this.all.filter(isRow).length, 'row')}`;
  }
}
