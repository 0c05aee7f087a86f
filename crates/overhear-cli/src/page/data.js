// SPDX-License-Identifier: MIT OR Apache-2.0
// The time-line's columns, decoded once into typed arrays that are sorted by time,
// so that every later question is a binary search.

const STATE = Object.freeze({ ABSENT: 0, RUNNING: 1, RUNNABLE: 2, BLOCKED: 3, PREEMPTED: 4, UNKNOWN: 5, MISSED: 6 });
const STATES = 7;
const STATE_NAMES = ['absent', 'running', 'waiting for a CPU', 'blocked', 'preempted', 'unknown', 'missed'];
const NO_CPU = 65535;

// Sums per state are kept for every 64th interval only: eight bytes times
// seven states for each would be more memory than the columns themselves, and a walk
// over at most 63 intervals costs less than a second binary search.
const BLOCK = 64;

function decodeBytes(text) {
  if (typeof text !== 'string') return new Uint8Array(0);
  if (typeof Uint8Array.fromBase64 === 'function') return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** A column of little-endian numbers. Every platform with a browser of today is
 *  little-endian, so the bytes are the array; an incomplete last number is dropped. */
function decodeColumn(text, Type) {
  const bytes = decodeBytes(text);
  const count = Math.floor(bytes.length / Type.BYTES_PER_ELEMENT);
  return new Type(bytes.buffer, bytes.byteOffset, count);
}

/** The number of entries of the ascending `times` that are below `t`. */
function lowerBound(times, t, low = 0, high = times.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[middle] < t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The number of entries of the ascending `times` that are at or below `t`. */
function upperBound(times, t, low = 0, high = times.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Consecutive intervals, each with a state: `starts[i]` to `starts[i + 1]`.
 *  Index -1 stands for the time before them and `count` for the time after. */
class Intervals {
  constructor(first, lengths, states, cpus) {
    const given = Math.min(lengths.length, states.length);
    const starts = new Float64Array(given + 1);
    const kept = new Uint8Array(given);
    const onCpu = new Uint16Array(given);
    let count = 0;
    let end = first;
    let long = false;
    for (let i = 0; i < given; i += 1) {
      const state = states[i] < STATES ? states[i] : STATE.UNKNOWN;
      const cpu = cpus && i < cpus.length ? cpus[i] : NO_CPU;
      // An interval longer than a u32 came in pieces: they are one again.
      if (!(long && kept[count - 1] === state && onCpu[count - 1] === cpu)) {
        starts[count] = end;
        kept[count] = state;
        onCpu[count] = cpu;
        count += 1;
      }
      long = lengths[i] >= 0x80000000;
      end += lengths[i];
    }
    starts[count] = end;
    this.count = count;
    this.starts = starts.subarray(0, count + 1);
    this.states = kept.subarray(0, count);
    this.cpus = onCpu.subarray(0, count);
    this.sums = this.#sumBlocks();
  }

  #sumBlocks() {
    const blocks = Math.floor(this.count / BLOCK) + 1;
    const sums = new Float64Array(blocks * STATES);
    const total = new Float64Array(STATES);
    for (let i = 0; i < this.count; i += 1) {
      if (i % BLOCK === 0) sums.set(total, (i / BLOCK) * STATES);
      total[this.states[i]] += this.starts[i + 1] - this.starts[i];
    }
    if (this.count % BLOCK === 0) sums.set(total, (blocks - 1) * STATES);
    return sums;
  }

  get first() {
    return this.starts[0];
  }

  get end() {
    return this.starts[this.count];
  }

  /** The interval that holds `t`. */
  find(t) {
    return upperBound(this.starts, t) - 1;
  }

  stateAt(index) {
    return index >= 0 && index < this.count ? this.states[index] : STATE.ABSENT;
  }

  /** Writes into `out` how long each state has lasted in all up to `t`. */
  sumsUntil(t, out) {
    const index = Math.min(this.find(t), this.count - 1);
    if (index < 0) return out.fill(0);
    const block = Math.floor(index / BLOCK);
    for (let s = 0; s < STATES; s += 1) out[s] = this.sums[block * STATES + s];
    for (let i = block * BLOCK; i < index; i += 1) out[this.states[i]] += this.starts[i + 1] - this.starts[i];
    out[this.states[index]] += Math.min(t, this.end) - this.starts[index];
    return out;
  }
}

/** A sensor's elements: their times, and their fields by column. */
class Elements {
  constructor(sensor) {
    const deltas = decodeColumn(sensor.deltas, Uint32Array);
    const fields = Array.isArray(sensor.fields) ? sensor.fields : [];
    this.fields = fields.map((field) => ({
      name: String(field.name ?? ''),
      unit: String(field.unit ?? ''),
      number: field.kind !== 'text',
      values: field.kind === 'text' ? (Array.isArray(field.values) ? field.values : []) : decodeColumn(field.values, Float64Array),
    }));
    const times = new Float64Array(deltas.length + 1);
    let count = 0;
    let t = Number(sensor.first_ns);
    if (Number.isFinite(t)) {
      times[count++] = t;
      for (let i = 0; i < deltas.length; i += 1) {
        t += deltas[i];
        if (deltas[i] !== 0xffffffff) times[count++] = t;
      }
    }
    this.times = times.subarray(0, count);
    this.count = count;
    /** Null where the elements come from several lanes, each with sequences of its own. */
    this.firstSequence = sensor.first_sequence === null ? null : Number(sensor.first_sequence) || 0;
    this.gaps = [];
  }

  get end() {
    return this.count ? this.times[this.count - 1] : 0;
  }

  /** The element's sequence number, or null: what was missed before it has one, too. */
  sequence(index) {
    if (this.firstSequence === null) return null;
    let missed = 0;
    for (const gap of this.gaps) {
      if (gap.from >= this.times[index]) break;
      missed += gap.missed;
    }
    return this.firstSequence + index + missed;
  }

  /** The element nearest to `t`, or -1. */
  nearest(t) {
    const next = lowerBound(this.times, t);
    if (next === 0) return this.count ? 0 : -1;
    if (next === this.count) return next - 1;
    return this.times[next] - t < t - this.times[next - 1] ? next : next - 1;
  }
}

/** Gaps that overlap are drawn as one, so that they are consecutive intervals like
 *  a thread's and cost as little to draw; `members` remembers each one's own facts. */
class Gaps {
  constructor(gaps) {
    this.members = gaps.slice().sort((a, b) => a.from - b.from);
    const lengths = [];
    const states = [];
    this.firstMember = [];
    let end = this.members.length ? this.members[0].from : 0;
    const first = end;
    for (let m = 0; m < this.members.length; m += 1) {
      const { from, to } = this.members[m];
      if (states.length && from <= end) {
        lengths[lengths.length - 1] += Math.max(0, to - end);
      } else {
        if (states.length) {
          lengths.push(from - end);
          states.push(STATE.ABSENT);
          this.firstMember.push(m);
        }
        lengths.push(Math.max(1, to - from));
        states.push(STATE.MISSED);
        this.firstMember.push(m);
      }
      end = Math.max(end, to, from + 1);
    }
    this.firstMember.push(this.members.length);
    this.intervals = new Intervals(first, lengths, states, null);
  }

  /** The members of the drawn gap nearest to `t`, if it is within `reach`. */
  near(t, reach) {
    const { intervals } = this;
    let best = -1;
    let distance = reach;
    const at = intervals.find(t);
    for (let i = Math.max(0, at - 1); i <= Math.min(intervals.count - 1, at + 1); i += 1) {
      if (intervals.states[i] !== STATE.MISSED) continue;
      const away = Math.max(0, intervals.starts[i] - t, t - intervals.starts[i + 1]);
      if (away <= distance) {
        distance = away;
        best = i;
      }
    }
    return best < 0 ? [] : this.members.slice(this.firstMember[best], this.firstMember[best + 1]);
  }
}

const list = (value) => (Array.isArray(value) ? value : []);

/** The whole time-line in memory, or null if none was recorded. */
function decodeTimeline(raw, report) {
  if (!raw || typeof raw !== 'object') return null;
  const processes = new Map();
  const process = (pid, comm) => {
    if (!processes.has(pid)) processes.set(pid, { pid, comm: '', threads: [], sensors: [], gaps: [] });
    const found = processes.get(pid);
    if (!found.comm && comm) found.comm = String(comm);
    return found;
  };

  for (const one of list(raw.processes)) process(one.pid, one.comm);
  for (const one of list(raw.threads)) {
    const intervals = new Intervals(
      Number(one.first_ns) || 0,
      decodeColumn(one.lengths, Uint32Array),
      decodeBytes(one.states),
      decodeColumn(one.cpus, Uint16Array),
    );
    process(one.pid, one.pid === one.tid ? one.comm : '').threads.push({ tid: one.tid, comm: String(one.comm ?? ''), intervals });
  }
  const sensors = list(raw.sensors).map((one) => {
    const sensor = { id: String(one.id ?? ''), instance: one.instance ?? '', type: String(one.type ?? ''), elements: new Elements(one) };
    process(one.pid, one.comm).sensors.push(sensor);
    return sensor;
  });

  const hostGaps = [];
  for (const one of list(raw.gaps)) {
    const from = Number(one.from_ns) || 0;
    const gap = { label: String(one.label ?? ''), from, to: Math.max(from, Number(one.to_ns) || 0), missed: Number(one.missed) || 0, cause: String(one.cause ?? '') };
    (processes.get(one.pid)?.gaps ?? hostGaps).push(gap);
    const sensor = sensors[one.sensor];
    if (sensor) sensor.elements.gaps.push(gap);
  }
  for (const sensor of sensors) sensor.elements.gaps.sort((a, b) => a.from - b.from);

  const origin = Number(raw.origin_ns) || 0;
  const end = Number(raw.end_ns) || 0;
  let extent = Math.max(1, end >= origin ? end - origin : end);
  if (!end) extent = Math.max(extent, Number(report?.duration_ns) || 0);
  for (const { threads, sensors: owned } of processes.values()) {
    for (const thread of threads) if (thread.intervals.count) extent = Math.max(extent, thread.intervals.end);
    for (const sensor of owned) extent = Math.max(extent, sensor.elements.end);
  }
  const undrawn = { intervals: Number(raw.dropped_intervals) || 0, marks: Number(raw.dropped_marks) || 0 };
  return { origin, extent, processes: [...processes.values()], hostGaps, undrawn };
}
