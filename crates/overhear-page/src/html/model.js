// SPDX-License-Identifier: MIT OR Apache-2.0
// One run in memory: processes with their threads and sensors, the CPUs, and kernel sensors beyond
// scheduling. It accepts pieces of news and returns whether they brought rows.

// Number of runs that are buffered before they go into the columns.
const CHUNK = 1 << 16;

/** The runs on one CPU: like a thread's intervals, with the thread of each. */
class CpuRuns {
  #owners = new Uint32Array(0);

  constructor(number) {
    this.number = number;
    this.intervals = new Intervals(0);
    this.owners = this.#owners;
    this.#clear();
  }

  #clear() {
    this.lengths = [];
    this.states = [];
    this.of = [];
    this.end = this.intervals.starts[this.intervals.settled];
  }

  /** Buffers a run; runs of one CPU come in order. */
  take(from, to, owner) {
    const start = Math.max(from, this.end);
    if (to <= start) return;
    this.#fill(start - this.end);
    this.#piece(to - start, STATE.RUNNING, owner);
    this.end = to;
    if (this.of.length > CHUNK) this.settle();
  }

  #fill(length) {
    if (length > 0) this.#piece(length, STATE.ABSENT, 0);
  }

  #piece(length, state, owner) {
    this.lengths.push(length);
    this.states.push(state);
    this.of.push(owner);
  }

  /** Moves the buffered runs into the columns. */
  settle() {
    const { intervals, lengths, states, of } = this;
    if (!lengths.length) return;
    const before = intervals.settled;
    intervals.append(lengths, states, [], [], [], true);
    this.#owners = grown(this.#owners, before + of.length + 2);
    this.#owners.set(of, before);
    this.owners = this.#owners;
    this.#clear();
  }

  /** The thread that runs there at present. */
  extend(from, to, owner) {
    const gap = Math.max(0, from - this.end);
    if (gap > 0) {
      this.#fill(gap);
      this.end = from;
      this.settle();
    }
    this.#owners = grown(this.#owners, this.intervals.settled + 2);
    this.#owners[this.intervals.settled] = owner;
    this.owners = this.#owners;
    this.intervals.extend(this.end, to, STATE.RUNNING, NO_CPU, ['', 0]);
  }
}

/** The threads' runs in the order of time: each thread's runs are in order, so a heap merges them,
 *  and its least entry is the next. */
function eachRun(threads, take) {
  const heap = [];
  const startOf = (entry) => entry.thread.intervals.starts[entry.at];
  const seek = (entry) => {
    const { states, cpus, settled } = entry.thread.intervals;
    while (entry.at < settled && (states[entry.at] !== STATE.RUNNING || cpus[entry.at] === NO_CPU)) entry.at += 1;
    entry.thread.taken = entry.at;
    return entry.at < settled;
  };
  const sink = (place) => {
    const entry = heap[place];
    const start = startOf(entry);
    for (;;) {
      let child = 2 * place + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && startOf(heap[child + 1]) < startOf(heap[child])) child += 1;
      if (startOf(heap[child]) >= start) break;
      heap[place] = heap[child];
      place = child;
    }
    heap[place] = entry;
  };
  for (const thread of threads) {
    const entry = { thread, at: thread.taken };
    if (seek(entry)) heap.push(entry);
  }
  for (let place = (heap.length >> 1) - 1; place >= 0; place -= 1) sink(place);
  while (heap.length) {
    const entry = heap[0];
    const { intervals } = entry.thread;
    take(intervals.cpus[entry.at], intervals.starts[entry.at], intervals.starts[entry.at + 1], entry.thread);
    entry.at += 1;
    if (!seek(entry)) {
      const last = heap.pop();
      if (!heap.length) break;
      if (last !== entry) heap[0] = last;
      else continue;
    }
    sink(0);
  }
}

class Model {
  constructor(raw, report, label = '') {
    this.label = label;
    this.report = report ?? {};
    this.processes = new Map();
    this.threads = [];
    this.sensors = [];
    this.kernel = [];
    this.hostGaps = [];
    this.cpus = [];
    this.byTid = new Map();
    this.leftOut = [];
    this.samples = new Samples();
    this.origin = 0;
    this.extent = 1;
    this.append(raw);
  }

  /** Whether wake-ups were recorded; older recordings do not contain the list of kernel sensors. */
  get recordsWakeups() {
    const kernel = list(this.report.sources).find((source) => source.name === 'kernel');
    return kernel?.sensors?.length ? kernel.sensors.includes('sched_wake') : kernel?.active === 'bpf';
  }

  get isEmpty() {
    return !this.processes.size && !this.hostGaps.length && !this.kernel.length;
  }

  #process(pid, comm) {
    const { processes } = this;
    if (!processes.has(pid)) {
      processes.set(pid, { pid, comm: '', threads: [], sensors: [], gaps: [] });
      this.isNew = true;
    }
    const found = processes.get(pid);
    if (!found.comm && comm) found.comm = String(comm);
    return found;
  }

  /** Appends a piece of news; returns true if it needs a new row. */
  append(raw) {
    this.isNew = false;
    const origin = Number(raw.origin_ns) || 0;
    this.origin = origin || this.origin;
    const end = Number(raw.end_ns) || 0;
    const now = Math.max(1, end >= origin ? end - origin : end);
    let extent = Math.max(this.extent, now);
    if (!end) extent = Math.max(extent, Number(this.report.duration_ns) || 0);
    for (const one of list(raw.processes)) {
      const process = this.#process(one.pid, one.comm);
      if (one.comm && process.comm !== one.comm) {
        process.comm = String(one.comm);
        this.isNew = true;
      }
    }
    list(raw.threads).forEach((one, place) => this.#thread(one, one.index ?? place, now));
    list(raw.sensors).forEach((one, place) => this.#sensor(one, one.index ?? place));
    this.#samples();
    for (const one of list(raw.gaps)) this.#gap(one);
    for (const thread of this.threads) if (thread?.intervals.count) extent = Math.max(extent, thread.intervals.end);
    for (const sensor of this.sensors) if (sensor) extent = Math.max(extent, sensor.elements.end);
    this.extent = extent;
    this.leftOut = list(raw.left_out).map(String);
    this.#runs(now);
    return this.isNew;
  }

  #thread(one, index, now) {
    let thread = this.threads[index];
    if (!thread) {
      thread = { index, pid: one.pid, tid: one.tid, comm: '', taken: 0, open: null, intervals: new Intervals(Number(one.first_ns) || 0) };
      this.threads[index] = thread;
      this.#process(one.pid, '').threads.push(thread);
      if (!this.byTid.has(one.tid)) this.byTid.set(one.tid, []);
      this.byTid.get(one.tid).push(thread);
      this.isNew = true;
    }
    const comm = String(one.comm ?? '');
    if (comm !== thread.comm) {
      thread.comm = comm;
      this.isNew = true;
    }
    if (one.pid === one.tid) this.#process(one.pid, one.comm);
    const table = list(one.reason_table).filter(Array.isArray).map(([kind, value]) => [String(kind), Number(value) || 0]);
    thread.intervals.append(
      decodeColumn(one.lengths, Uint32Array),
      decodeBytes(one.states),
      decodeColumn(one.cpus, Uint16Array),
      decodeColumn(one.reasons, Uint16Array),
      table,
    );
    thread.open = one.open ?? null;
    if (thread.open) {
      const { from_ns: from, state, cpu, reason } = thread.open;
      thread.intervals.extend(Number(from) || 0, now, state < STATES ? state : STATE.UNKNOWN, Number(cpu), Array.isArray(reason) ? reason : ['', 0]);
    }
  }

  #sensor(one, index) {
    const known = this.sensors[index];
    if (known) {
      known.elements.append(one);
      return;
    }
    const sensor = { id: String(one.id ?? ''), instance: one.instance ?? '', type: String(one.type ?? ''), elements: new Elements(one) };
    if (sensor.type === SAMPLE_TYPE) sensor.counts = new Set(list(one.fields).filter((field) => field.count === true).map((field) => String(field.name)));
    this.sensors[index] = sensor;
    if (one.pid === null || one.pid === undefined) this.kernel.push(sensor);
    else this.#process(one.pid, one.comm).sensors.push(sensor);
    this.isNew = true;
  }

  /** Divides new samples by thread. */
  #samples() {
    this.sensors.forEach((sensor, place) => {
      if (sensor?.type === SAMPLE_TYPE && this.samples.take(sensor, place)) this.isNew = true;
    });
    for (const { pid } of this.samples.tasks.values()) if (pid) this.#process(pid, '');
  }

  #gap(one) {
    const from = Number(one.from_ns) || 0;
    const gap = { label: String(one.label ?? ''), from, to: Math.max(from, Number(one.to_ns) || 0), missed: Number(one.missed) || 0, cause: String(one.cause ?? '') };
    (this.processes.get(one.pid)?.gaps ?? this.hostGaps).push(gap);
    const sensor = this.sensors[one.sensor];
    if (sensor) {
      sensor.elements.gaps.push(gap);
      sensor.elements.gaps.sort((a, b) => a.from - b.from);
    }
    this.isNew = true;
  }

  /** The rows of the CPUs are computed from those of the threads. */
  #runs(now) {
    const { cpus } = this;
    const cpuOf = (number) => {
      if (!cpus[number]) {
        cpus[number] = new CpuRuns(number);
        this.isNew = true;
      }
      return cpus[number];
    };
    const threads = this.threads.filter((thread) => thread);
    eachRun(threads, (number, from, to, thread) => cpuOf(number).take(from, to, thread.index));
    for (const cpu of cpus) if (cpu) cpu.settle();
    for (const thread of threads) {
      const { open, intervals } = thread;
      if (!open || open.state !== STATE.RUNNING || open.cpu === NO_CPU || intervals.settled === intervals.count) continue;
      cpuOf(open.cpu).extend(intervals.starts[intervals.settled], now, thread.index);
    }
  }

  /** The thread that had this id at `t`, or null if no followed thread had it. */
  threadAt(tid, t) {
    const all = this.byTid.get(tid);
    if (!all) return null;
    for (let i = all.length - 1; i > 0; i -= 1) if (all[i].intervals.first <= t) return all[i];
    return all[0];
  }

  /** Time when the thread that had this id at `t` ended; the end of the run if it did not end, or
   *  was not followed. */
  endOf(tid, t) {
    const end = this.threadAt(tid, t)?.intervals.end ?? 0;
    return end > t ? end : this.extent;
  }

  /** A thread's name for display, also of a thread that was not followed. */
  nameOf(tid, t) {
    const thread = this.threadAt(tid, t);
    const comm = thread ? thread.comm : this.otherNames().get(tid);
    return `${comm || 'thread'} ${tid}`;
  }

  /** Names of threads that were not followed; in a live run the report comes later. */
  otherNames() {
    const others = this.report?.other_threads;
    if (!this.othersByTid || this.others !== others) {
      this.others = others;
      this.othersByTid = new Map(list(others).map((thread) => [thread.tid, String(thread.comm ?? '')]));
    }
    return this.othersByTid;
  }
}
