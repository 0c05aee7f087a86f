// SPDX-License-Identifier: MIT OR Apache-2.0
// Sensors that tell of stretches of time: by an element at the begin and one at the end, or by
// one at the end that says how long it was. They are drawn as bars.

const SPAN_UNITS = { ns: 1, 'µs': 1e3, us: 1e3, ms: 1e6, s: 1e9 };
// More spans than this at one time have no room below each other.
const MOST_LANES = 6;
// An interrupt can interrupt another one, on its CPU.
const MOST_LANES_OF_CPU = 2;
const LENGTH_NAMES = /^(duration|elapsed|length|took|span)(_ns|_us|_ms|_s)?$/;

const isFrame = (name) => name.startsWith('writer_');

/** What the kernel begins and ends, and what tells one from another. Its edges are 1 and 2. */
const KERNEL_SPANS = { irq: ['cpu', 'number'], softirq: ['cpu', 'number'], timer: ['cpu', 'function'], syscall: ['tid'], futex: ['tid'], block_io: ['request', 'device'] };

/** What happens on a CPU, to whichever thread is there: its lanes are those of the CPUs. */
const OF_CPUS = ['irq', 'softirq', 'timer'];

/** The kernel's soft interrupts, by their numbers. */
const SOFT_INTERRUPTS = ['high', 'timer', 'network send', 'network receive', 'block', 'poll', 'tasklet', 'scheduler', 'hrtimer', 'RCU'];

/** A field of a kernel's element for people: some numbers have names. */
function namedValue(type, field, value) {
  const name = type === 'softirq' && field.name === 'number' ? SOFT_INTERRUPTS[value] : undefined;
  return name ?? formatValue(value ?? null, field.unit);
}

/** How a sensor's fields tell of spans: `{edge, keys, begin, cpu}` or `{length, scale}`, or null. */
function spanFields(fields, type, isKernel) {
  const place = (name) => fields.findIndex((field) => field.name === name && field.number);
  if (isKernel) {
    const keys = KERNEL_SPANS[type];
    if (!keys || place('kind') < 0) return null;
    const cpu = OF_CPUS.includes(type) && place('cpu') >= 0 ? place('cpu') : undefined;
    return { edge: place('kind'), begin: 1, keys: keys.map(place).filter((index) => index >= 0), cpu };
  }
  const edge = fields.findIndex((field) => field.name === 'edge' && field.number && field.unit === '');
  if (edge >= 0 && fields[edge].series.low >= 0 && fields[edge].series.high <= 1) {
    // What tells one span from another: the thread that writes, and the first plain number.
    const keys = [
      fields.findIndex((field) => field.name === 'writer_tid'),
      fields.findIndex((field, i) => i !== edge && field.number && field.unit === '' && !isFrame(field.name)),
    ];
    return { edge, begin: 0, keys: keys.filter((index) => index >= 0) };
  }
  const length = fields.findIndex((field) => field.number && SPAN_UNITS[field.unit] && LENGTH_NAMES.test(field.name));
  return length >= 0 ? { length, scale: SPAN_UNITS[fields[length].unit] } : null;
}

/** Begin and end of each span, with the element that began or told it, in the order of begins.
 *  A begin without an end lasts until `now`; an end without a begin is left out. */
function findSpans(elements, how, now) {
  const spans = [];
  const { times, fields, count } = elements;
  if (how.length !== undefined) {
    const lengths = fields[how.length].values;
    for (let i = 0; i < count; i += 1) {
      const length = lengths[i] * how.scale;
      if (length >= 0) spans.push([times[i] - length, times[i], i]);
    }
  } else {
    const edges = fields[how.edge].values;
    const open = new Map();
    for (let i = 0; i < count; i += 1) {
      const key = how.keys.map((index) => fields[index].values[i]).join(' ');
      if (edges[i] === how.begin) {
        open.set(key, spans.push([times[i], NaN, i]) - 1);
      } else if (edges[i] === how.begin + 1 && open.has(key)) {
        spans[open.get(key)][1] = times[i];
        open.delete(key);
      }
    }
    for (const span of spans) if (Number.isNaN(span[1])) span[1] = now;
  }
  return spans.sort((a, b) => a[0] - b[0]);
}

/** Spans that overlap lie in lanes below each other, each span in the first lane that is free; those of CPUs
 *  in lanes of their CPUs (`cpu`, else null). What finds no lane is counted in `crowded`. */
class Spans {
  constructor(elements, how, now) {
    this.lanes = [];
    this.crowded = 0;
    const ends = [];
    const columns = [];
    const hasRoom = (cpu) => (cpu === null ? ends.length < MOST_LANES : columns.filter((lane) => lane.cpu === cpu).length < MOST_LANES_OF_CPU);
    for (const span of findSpans(elements, how, now)) {
      const [from, to] = span;
      const cpu = how.cpu === undefined ? null : elements.fields[how.cpu].values[span[2]];
      let lane = ends.findIndex((end, index) => end <= from && columns[index].cpu === cpu);
      if (lane < 0 && hasRoom(cpu)) {
        lane = ends.push(from) - 1;
        columns.push({ cpu, first: from, lengths: [], states: [], members: [] });
      }
      if (lane < 0) {
        this.crowded += 1;
        continue;
      }
      const { lengths, states, members } = columns[lane];
      if (from > ends[lane]) {
        lengths.push(from - ends[lane]);
        states.push(STATE.ABSENT);
        members.push(null);
      }
      lengths.push(Math.max(1, to - from));
      states.push(STATE.RUNNING);
      members.push(span);
      ends[lane] = Math.max(to, from + 1);
    }
    columns.sort((a, b) => a.cpu - b.cpu);
    for (const { cpu, first, lengths, states, members } of columns) {
      const intervals = new Intervals(first);
      intervals.append(lengths, states, [], [], [], true);
      this.lanes.push({ cpu, intervals, members });
    }
  }

  /** The span in a lane at `t`: begin, end and element, or null. */
  at(lane, t) {
    return this.lanes[lane]?.members[this.lanes[lane].intervals.find(t)] ?? null;
  }
}
