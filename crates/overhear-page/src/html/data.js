// SPDX-License-Identifier: MIT OR Apache-2.0
// The time-line's columns, decoded into typed arrays that are sorted by time, so that every later
// look-up is a binary search. The arrays grow: a run that goes on sends news, and a recording is
// one piece of news.

const STATE = Object.freeze({ ABSENT: 0, RUNNING: 1, RUNNABLE: 2, BLOCKED: 3, PREEMPTED: 4, UNKNOWN: 5, MISSED: 6 });
const STATES = 7;
const STATE_NAMES = ['absent', 'running', 'waiting for a CPU', 'blocked', 'preempted', 'unknown', 'missed'];
const NO_CPU = 65535;
const NO_REASON = 65535;

// Level of detail: sums and counts per state are kept for every 64th interval. For each interval
// they would take more memory than the columns themselves, and a walk over at most 63 intervals
// costs less than a second binary search.
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
  if (ArrayBuffer.isView(text)) return text;
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

/** `array`, or a copy of it that has room for `needed` entries. */
function grown(array, needed) {
  if (needed <= array.length) return array;
  // A first piece is often the only one: its array gets exactly the needed size.
  const larger = new array.constructor(array.length ? Math.max(needed, array.length * 2) : needed);
  larger.set(array);
  return larger;
}

/** Consecutive intervals, each with a state: `starts[i]` to `starts[i + 1]`.
 *  Index -1 stands for the time before them and `count` for the time after. */
class Intervals {
  #starts = new Float64Array(0);
  #states = new Uint8Array(0);
  #cpus = new Uint16Array(0);
  #reasons = new Uint16Array(0);
  #total = new Float64Array(STATES);
  #tally = new Uint32Array(STATES);
  #places = new Map();
  #tail = false;
  #long = false;

  constructor(first) {
    this.count = 0;
    this.sums = new Float64Array(0);
    this.tallies = new Uint32Array(0);
    /** The reasons that occur: `[kind, value]`. */
    this.reasonTable = [];
    this.#reserve(0);
    this.#starts[0] = first;
    this.#show();
  }

  #reserve(more) {
    const needed = this.count + more;
    this.#starts = grown(this.#starts, needed + 1);
    this.#states = grown(this.#states, needed);
    this.#cpus = grown(this.#cpus, needed);
    this.#reasons = grown(this.#reasons, needed);
    const blocks = (Math.floor(needed / BLOCK) + 1) * STATES;
    this.sums = grown(this.sums, blocks);
    this.tallies = grown(this.tallies, blocks);
  }

  #show() {
    this.starts = this.#starts.subarray(0, this.count + 1);
    this.states = this.#states.subarray(0, this.count);
    this.cpus = this.#cpus.subarray(0, this.count);
    this.reasons = this.#reasons.subarray(0, this.count);
  }

  #push(end, state, cpu, reason) {
    const i = this.count;
    if (i % BLOCK === 0) {
      this.sums.set(this.#total, (i / BLOCK) * STATES);
      this.tallies.set(this.#tally, (i / BLOCK) * STATES);
    }
    this.#states[i] = state;
    this.#cpus[i] = cpu;
    this.#reasons[i] = reason;
    this.#starts[i + 1] = end;
    this.count = i + 1;
  }

  #place(reason) {
    const key = reason.join(' ');
    if (!this.#places.has(key)) {
      this.#places.set(key, this.reasonTable.length < NO_REASON ? this.reasonTable.push(reason) - 1 : NO_REASON);
    }
    return this.#places.get(key);
  }

  #dropTail() {
    if (this.#tail) this.count -= 1;
    this.#tail = false;
  }

  /** Appends columns. With `whole` each entry is an interval; otherwise an interval longer than a
   *  u32 is in pieces, as in the document. */
  append(lengths, states, cpus, reasons, table, whole = false) {
    this.#dropTail();
    const given = Math.min(lengths.length, states.length);
    const places = table.map((reason) => this.#place(reason));
    this.#reserve(given + 1);
    let end = this.#starts[this.count];
    for (let i = 0; i < given; i += 1) {
      const state = states[i] < STATES ? states[i] : STATE.UNKNOWN;
      const cpu = i < cpus.length ? cpus[i] : NO_CPU;
      const last = this.count - 1;
      const length = lengths[i];
      end += length;
      if (this.#long && this.#states[last] === state && this.#cpus[last] === cpu) {
        this.#starts[this.count] = end;
      } else {
        this.#push(end, state, cpu, i < reasons.length ? places[reasons[i]] ?? NO_REASON : NO_REASON);
        this.#tally[state] += 1;
      }
      this.#total[state] += length;
      this.#long = !whole && length >= 0x80000000;
    }
    this.#show();
  }

  /** Shows a state that goes on, until the next piece of news has its end. */
  extend(from, to, state, cpu, reason) {
    this.#dropTail();
    const start = this.#starts[this.count];
    if (to > start) {
      this.#reserve(1);
      this.#push(to, from > start + 1 ? STATE.UNKNOWN : state, cpu, reason[0] ? this.#place(reason) : NO_REASON);
      this.#tail = true;
    }
    this.#show();
  }

  /** Number of intervals that have ended. */
  get settled() {
    return this.#tail ? this.count - 1 : this.count;
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

  /** The reason: `[kind, value]`, or null if it is unknown. */
  reasonAt(index) {
    return this.reasonTable[this.reasons[index]] ?? null;
  }

  /** Writes into `out` the total time of each state up to `t`. */
  sumsUntil(t, out) {
    const index = Math.min(this.find(t), this.count - 1);
    if (index < 0) return out.fill(0);
    const block = Math.floor(index / BLOCK);
    for (let s = 0; s < STATES; s += 1) out[s] = this.sums[block * STATES + s];
    for (let i = block * BLOCK; i < index; i += 1) out[this.states[i]] += this.starts[i + 1] - this.starts[i];
    out[this.states[index]] += Math.min(t, this.end) - this.starts[index];
    return out;
  }

  /** Number of intervals with this state among the first `index`. */
  countUntil(index, state) {
    const end = Math.max(0, Math.min(index, this.count));
    const block = Math.floor(Math.max(0, end - 1) / BLOCK);
    let count = this.count ? this.tallies[block * STATES + state] : 0;
    for (let i = block * BLOCK; i < end; i += 1) if (this.states[i] === state) count += 1;
    return count;
  }

  /** The share of each state between two moments. */
  between(from, to) {
    const before = this.sumsUntil(from, new Float64Array(STATES));
    return this.sumsUntil(to, new Float64Array(STATES)).map((sum, s) => sum - before[s]);
  }
}

/** The numbers of one field, with the minimum and maximum of each block. */
class Series {
  #values = new Float64Array(0);
  #low = new Float64Array(0);
  #high = new Float64Array(0);
  #sum = new Float64Array(0);

  constructor() {
    this.count = 0;
    this.values = this.#values;
    this.low = Infinity;
    this.high = -Infinity;
  }

  get length() {
    return this.count;
  }

  append(values) {
    const from = this.count;
    this.count += values.length;
    this.#values = grown(this.#values, this.count);
    this.#values.set(values, from);
    const blocks = Math.floor(this.count / BLOCK);
    this.#low = grown(this.#low, blocks);
    this.#high = grown(this.#high, blocks);
    this.#sum = grown(this.#sum, blocks);
    for (let block = Math.floor(from / BLOCK); block < blocks; block += 1) {
      const found = this.#walk(block * BLOCK, (block + 1) * BLOCK, { low: Infinity, high: -Infinity, sum: 0 });
      this.#low[block] = found.low;
      this.#high[block] = found.high;
      this.#sum[block] = found.sum;
    }
    for (let i = from; i < this.count; i += 1) {
      const value = this.#values[i];
      if (value < this.low) this.low = value;
      if (value > this.high) this.high = value;
    }
    this.values = this.#values.subarray(0, this.count);
  }

  #walk(from, to, found) {
    for (let i = from; i < to; i += 1) {
      const value = this.#values[i];
      if (Number.isNaN(value)) continue;
      if (value < found.low) found.low = value;
      if (value > found.high) found.high = value;
      found.sum += value;
    }
    return found;
  }

  /** Minimum, maximum and sum of the entries from `from` to before `to`. */
  range(from, to) {
    const found = { low: Infinity, high: -Infinity, sum: 0 };
    const first = Math.ceil(from / BLOCK);
    const last = Math.floor(to / BLOCK);
    if (first >= last) return this.#walk(from, to, found);
    this.#walk(from, first * BLOCK, found);
    for (let block = first; block < last; block += 1) {
      if (this.#low[block] < found.low) found.low = this.#low[block];
      if (this.#high[block] > found.high) found.high = this.#high[block];
      found.sum += this.#sum[block];
    }
    return this.#walk(last * BLOCK, to, found);
  }
}

/** Times of the elements in a piece of news; `last` is the time of the element before them, if
 *  there is one. */
function elementTimes(last, sensor) {
  const deltas = decodeColumn(sensor.deltas, Uint32Array);
  const times = new Float64Array(deltas.length + 1);
  let count = 0;
  let t = last;
  if (Number.isNaN(t)) {
    t = Number(sensor.first_ns);
    if (!Number.isFinite(t)) return new Float64Array(0);
    times[count++] = t;
  }
  for (let i = 0; i < deltas.length; i += 1) {
    t += deltas[i];
    if (deltas[i] !== 0xffffffff) times[count++] = t;
  }
  return times.subarray(0, count);
}

/** A sensor's elements: their times, and their fields by column. */
class Elements {
  #times = new Float64Array(0);

  constructor(sensor) {
    this.count = 0;
    this.times = this.#times;
    this.fields = list(sensor.fields).map((field) => ({
      name: String(field.name ?? ''),
      unit: String(field.unit ?? ''),
      number: field.kind !== 'text',
      series: field.kind !== 'text' ? new Series() : null,
      values: [],
      /** Names of numbers, by their digits. */
      names: new Map(),
    }));
    /** Null if the elements come from several lanes, each with sequences of its own. */
    this.firstSequence = sensor.first_sequence === null ? null : Number(sensor.first_sequence) || 0;
    this.gaps = [];
    this.append(sensor);
  }

  append(sensor) {
    const times = sensor.times ?? elementTimes(this.count ? this.#times[this.count - 1] : NaN, sensor);
    this.#times = grown(this.#times, this.count + times.length);
    this.#times.set(times, this.count);
    this.count += times.length;
    this.times = this.#times.subarray(0, this.count);
    list(sensor.fields).forEach((given, index) => {
      const field = this.fields[index];
      if (!field) return;
      if (field.number) {
        field.series.append(decodeColumn(given.values, Float64Array));
        field.values = field.series.values;
        for (const [number, name] of Object.entries(given.names ?? {})) field.names.set(number, String(name));
      } else {
        field.values = field.values.concat(list(given.values));
      }
    });
  }

  get end() {
    return this.count ? this.times[this.count - 1] : 0;
  }

  /** The element's sequence number, or null. Missed elements before it have numbers, too. */
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

/** Overlapping gaps are drawn as one, so that they are consecutive intervals like a thread's and
 *  cost as little to draw; `members` has the facts of each gap. */
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
    this.intervals = new Intervals(first);
    this.intervals.append(lengths, states, [], [], [], true);
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

function list(value) {
  return Array.isArray(value) ? value : [];
}
