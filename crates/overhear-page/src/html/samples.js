// SPDX-License-Identifier: MIT OR Apache-2.0
// Samples of counters: the elements of a sampler, divided by thread. Each quantity of a thread is a
// track with a graph; a count is shown per second of the time to which it belongs. Samples at job
// ends are also bars, in the colour of a quantity.

const SAMPLE_TYPE = 'overhear_sample';
// The number of a job end in the field `point`, and that of the end of a thread.
const JOB_END = 8;
const THREAD_END = 9;
// The fields before the quantities.
const SAMPLE_HEADER = ['tid', 'pid', 'point', 'cpu', 'duration'];
const LEVELS = 8;

/** A count per second of its time, and the unit of that: time per time is a share. */
function rateUnit(unit) {
  return unit === 'ns' ? '%' : `${unit}/s`;
}

function rateOf(value, unit, duration) {
  return unit === 'ns' ? (100 * value) / duration : (value * 1e9) / duration;
}

/** Columns that grow; each entry is one number per field. */
class SampleBuffer {
  constructor(fields) {
    this.fields = fields;
    this.times = [];
    this.values = fields.map(() => []);
    this.elements = null;
  }

  push(time, values) {
    // Samples of several CPUs may overlap by the time between reading and writing.
    const before = this.times.length ? this.times[this.times.length - 1] : this.elements?.end ?? 0;
    this.times.push(Math.max(time, before));
    values.forEach((value, i) => this.values[i].push(value));
  }

  /** Moves the buffered entries into the elements. */
  settle() {
    if (!this.times.length) return;
    const news = {
      times: Float64Array.from(this.times),
      first_sequence: null,
      fields: this.fields.map(({ name, unit }, i) => ({ name, unit, kind: 'number', values: Float64Array.from(this.values[i]) })),
    };
    if (this.elements) this.elements.append(news);
    else this.elements = new Elements(news);
    this.times = [];
    this.values = this.fields.map(() => []);
  }
}

/** The jobs of one thread: consecutive bars, with the number of the job that each shows. */
class Jobs {
  constructor(buffer, id) {
    this.buffer = buffer;
    this.id = id;
    this.intervals = null;
    this.members = [];
    this.pending = { lengths: [], states: [] };
  }

  push(end, duration, values) {
    const number = this.buffer.times.length + (this.buffer.elements?.count ?? 0);
    this.buffer.push(end, values);
    const from = Math.max(end - duration, this.end ?? 0);
    if (this.end === undefined) this.first = from;
    else if (from > this.end) this.#piece(from - this.end, STATE.ABSENT, -1);
    this.#piece(Math.max(1, end - from), STATE.RUNNING, number);
    this.end = Math.max(end, from + 1);
  }

  #piece(length, state, member) {
    this.pending.lengths.push(length);
    this.pending.states.push(state);
    this.members.push(member);
  }

  settle() {
    this.buffer.settle();
    if (this.end === undefined) return;
    this.intervals ??= new Intervals(this.first);
    this.intervals.append(this.pending.lengths, this.pending.states, [], [], [], true);
    this.pending = { lengths: [], states: [] };
  }

  /** The job at `t`, or -1. */
  at(t) {
    const found = this.members[this.intervals.find(t)];
    return found ?? -1;
  }
}

/** The samples of one run. */
class Samples {
  constructor() {
    /** By process and thread: `{pid, tid, tracks, jobs}`. */
    this.tasks = new Map();
  }

  get hasJobs() {
    return [...this.tasks.values()].some((task) => task.jobs.size > 0);
  }

  /** The names of the quantities of jobs, each once. */
  jobQuantities() {
    const names = new Set();
    for (const task of this.tasks.values()) {
      for (const jobs of task.jobs.values()) for (const { name } of jobs.buffer.fields) names.add(name);
    }
    return [...names];
  }

  /** Takes the elements of a sampler that are new since the last call. */
  take(sensor, place) {
    const { elements } = sensor;
    const from = sensor.taken ?? 0;
    if (from === elements.count) return false;
    sensor.taken = elements.count;
    const header = SAMPLE_HEADER.map((name) => elements.fields.find((field) => field.name === name)?.values);
    if (header.some((values) => !values)) return false;
    const [tids, pids, points, cpus, durations] = header;
    const last = elements.fields.findIndex((field) => field.name === 'duration');
    // The page adds the CPU of kernel streams as a last field.
    const quantities = elements.fields.slice(last + 1).filter((field) => field.number && field.name !== 'cpu');
    let isNew = false;
    for (let i = from; i < elements.count; i += 1) {
      const key = `${pids[i]} ${tids[i]}`;
      if (!this.tasks.has(key)) this.tasks.set(key, { pid: pids[i], tid: tids[i], tracks: new Map(), jobs: new Map() });
      const task = this.tasks.get(key);
      const point = points[i];
      const before = task.tracks.size + task.jobs.size;
      if (point === JOB_END) this.#job(task, sensor, place, quantities, i, durations[i], cpus[i]);
      // What is left at the end of a thread is no usual sample.
      if (point === THREAD_END) this.#end(task, sensor, elements.times[i]);
      else this.#sample(task, sensor, place, quantities, i, durations[i], point === JOB_END);
      isNew = isNew || task.tracks.size + task.jobs.size > before;
    }
    for (const task of this.tasks.values()) {
      for (const track of task.tracks.values()) track.settle();
      for (const jobs of task.jobs.values()) jobs.settle();
    }
    return isNew;
  }

  /** The thread has ended: its tracks have no value any more. */
  #end(task, sensor, time) {
    for (const track of task.tracks.values()) {
      if (track.sampler === sensor) this.#noValueFrom(track, Math.min(time, track.until ?? time));
    }
  }

  #noValueFrom(track, time) {
    track.push(time, track.fields.map(() => NaN));
  }

  #sample(task, sensor, place, quantities, i, duration, isJob) {
    for (const field of quantities) {
      const isCount = sensor.counts ? sensor.counts.has(field.name) : true;
      const key = `${place} ${field.name}`;
      const track = task.tracks.get(key);
      // Samples at other points have all counts; those of jobs would have them a second time.
      if (track && isJob && !track.isOfJobs) continue;
      const value = field.values[i];
      if (isCount && !(duration > 0)) continue;
      const found = track ?? this.#track(sensor, field, isCount, isJob);
      if (!track) task.tracks.set(key, found);
      found.isOfJobs = isJob;
      const time = sensor.elements.times[i];
      if (!isCount) {
        found.push(time, [value]);
        continue;
      }
      // A count belongs to its duration alone: between two jobs there is no value.
      if (found.until < time - duration) this.#noValueFrom(found, found.until);
      found.push(time - duration, [rateOf(value, field.unit, duration), value, duration]);
      found.until = time;
    }
  }

  #track(sensor, field, isCount, isJob) {
    const fields = isCount
      ? [{ name: field.name, unit: rateUnit(field.unit) }, { name: 'count', unit: field.unit }, { name: 'duration', unit: 'ns' }]
      : [{ name: field.name, unit: field.unit }];
    const track = new SampleBuffer(fields);
    return Object.assign(track, { id: field.name, sampler: sensor, isOfJobs: isJob });
  }

  #job(task, sensor, place, quantities, i, duration, cpu) {
    if (!task.jobs.has(place)) {
      const fields = [{ name: 'duration', unit: 'ns' }, ...quantities.map(({ name, unit }) => ({ name, unit }))];
      const names = fields.map((field) => field.name);
      const ipc = [names.indexOf('instructions'), names.indexOf('cycles')];
      const hasIpc = ipc.every((index) => index >= 0);
      if (hasIpc) fields.push({ name: 'ipc', unit: '' });
      fields.push({ name: 'cpu', unit: '' });
      task.jobs.set(place, Object.assign(new Jobs(new SampleBuffer(fields), sensor.id), { sampler: sensor, ipc: hasIpc ? ipc : null }));
    }
    const jobs = task.jobs.get(place);
    const values = [duration, ...quantities.map((field) => field.values[i])];
    if (jobs.ipc) values.push(values[jobs.ipc[1]] > 0 ? values[jobs.ipc[0]] / values[jobs.ipc[1]] : NaN);
    jobs.push(sensor.elements.times[i], duration, [...values, cpu]);
  }
}

/** The anomalies of one thread in the report of a run, by the end of their first job. */
function anomaliesOf(run, sampler, task) {
  const found = list(run.report?.samplers).filter((one) => one.id === sampler.id && String(one.instance ?? '') === String(sampler.instance));
  return found.flatMap((one) => list(one.anomalies)).filter((one) => one.pid === task.pid && one.tid === task.tid);
}

/** The names of sampled threads in the report of a run. */
function sampledNames(run) {
  const tasks = list(run.report?.samplers).flatMap((sampler) => list(sampler.tasks));
  return new Map(tasks.map((task) => [task.tid, String(task.comm ?? '')]));
}

/** The level of a value between two others, for its colour. */
function levelOf(value, low, high) {
  if (!(high > low) || Number.isNaN(value)) return 0;
  return Math.min(LEVELS - 1, Math.max(0, Math.floor((LEVELS * (value - low)) / (high - low))));
}

/** The level of each column of a row of jobs; of several jobs in a column, the highest counts. */
function jobLevel(row, columns, from, perColumn) {
  const { jobs, elements } = row;
  const { series } = elements.fields[row.field];
  return (x) => {
    if (columns.kind[x] !== HIDDEN) return levelOf(series.values[jobs.members[columns.at[x]]] ?? NaN, series.low, series.high);
    const first = lowerBound(elements.times, from + x * perColumn);
    const end = Math.min(elements.count, lowerBound(elements.times, from + (x + 1) * perColumn) + 1);
    return levelOf(series.range(first, Math.max(first + 1, end)).high, series.low, series.high);
  };
}

/** The menu of the quantity that colours the jobs; hidden while there are no jobs. */
class JobChoice {
  constructor(rows, onChange) {
    this.rows = rows;
    this.holder = byId('job-choice');
    this.menu = byId('job-quantity');
    this.menu.addEventListener('change', () => {
      rows.setJobQuantity(this.menu.value);
      onChange();
    });
    this.update();
  }

  update() {
    const names = [...new Set(this.rows.runs.flatMap((run) => run.samples.jobQuantities()))].filter((name) => name !== 'cpu');
    this.holder.hidden = !names.length;
    if (names.join(' ') === this.names) return;
    this.names = names.join(' ');
    const chosen = names.includes(this.rows.jobQuantity) ? this.rows.jobQuantity : names[0];
    this.menu.replaceChildren(...names.map((name) => Object.assign(make('option', '', name), { value: name, selected: name === chosen })));
  }
}
