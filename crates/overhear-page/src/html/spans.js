// SPDX-License-Identifier: MIT OR Apache-2.0
// Sensors that describe spans of time: by an element at the begin and one at the end, or by one at
// the end that has the length. They are drawn as bars.

const SPAN_UNITS = { ns: 1, 'µs': 1e3, us: 1e3, ms: 1e6, s: 1e9 };
// Maximum number of overlapping spans: there is no room for more lanes.
const MOST_LANES = 6;
// An interrupt can interrupt another one, on its CPU.
const MOST_LANES_OF_CPU = 2;
const LENGTH_NAMES = /^(duration|elapsed|length|took|span)(_ns|_us|_ms|_s)?$/;

const isFrame = (name) => name.startsWith('writer_');

/** Spans of the kernel's elements: the kinds that begin (the next kind is the end of each), the
 *  fields that distinguish spans, and the number of spans with equal fields that may be open at
 *  once; the inner one ends first. */
const KERNEL_SPANS = {
  irq: { begins: [1], keys: ['cpu', 'number'], nested: 1 },
  softirq: { begins: [1], keys: ['cpu', 'number'], nested: 1 },
  // The end does not have the function. A hard handler interrupts a soft one.
  timer: { begins: [1, 3, 5], keys: ['cpu', 'tid'], nested: 2, same: ['cpu', 'function'] },
  syscall: { begins: [1], keys: ['tid'], nested: 1 },
  futex: { begins: [1], keys: ['tid'], nested: 1 },
  lock: { begins: [1], keys: ['tid', 'address'], nested: 1 },
  block_io: { begins: [1], keys: ['request', 'device'], nested: 1 },
};

/** Sensors of events on a CPU, independent of the thread: their lanes are those of the CPUs. */
const OF_CPUS = ['irq', 'softirq', 'timer'];

/** Whether a kernel sensor is a place that the user named. */
const isProbe = (id) => /^(probe|usdt|tracepoint|kprobe)\//.test(id);

/** Whether its elements are calls of a function. */
const isCalls = (id) => /^k?probe\//.test(id) && !id.endsWith('/return');

/** Maximum depth of recursive calls that are shown. */
const MOST_CALLS = 256;

/** The most useful field of a kernel's element; for other elements it is the thread. */
const TELLING = { page_fault: 'address', signal: 'number', sched_migrate: 'to_cpu', ipc: 'bytes', cpu_idle: 'state', cpu_frequency: 'khz', probe: 'argument_1', probe_return: 'value', lock: 'other_tid', irq: 'name', softirq: 'number', syscall: 'number', timer: 'function' };

/** Fields with a thread id. */
const OF_THREADS = ['tid', 'other_tid', 'sender_tid', 'by_tid'];

/** An address; a double does not have the last digits of one in the kernel. */
function formatAddress(value) {
  const digits = `0x${value.toString(16)}`;
  return Number.isSafeInteger(value) ? digits : `${digits.slice(0, -3)}…`;
}

/** A field of an element for display: numbers in the kernel's elements become names, threads, or
 *  addresses. */
function fieldText(row, field, at) {
  const value = at < field.values.length ? field.values[at] : null;
  if (field.unit === 'hex' && typeof value === 'number') return formatAddress(value);
  if (row.group.part !== 'cpus' || typeof value !== 'number' || field.unit !== '') return formatValue(value, field.unit);
  const name = field.names.get(String(value));
  if (name !== undefined) return name;
  if (OF_THREADS.includes(field.name)) return value === 0 ? 'none' : row.run.nameOf(value, row.elements.times[at]);
  if (field.name === 'address' || field.name === 'function') return formatAddress(value);
  if (value === 0xffffffff) return 'not known';
  return Number.isInteger(value) ? String(value) : formatValue(value, '');
}

/** How a sensor's fields describe spans: `{edge, begins, keys, nested, cpu, thread}` or
 *  `{length, scale}`, or null. With `returns` the elements are calls of a function, and those are
 *  its returns. */
function spanFields(fields, type, isKernel, returns) {
  const place = (name) => fields.findIndex((field) => field.name === name && field.number);
  const places = (names) => names.map(place).filter((index) => index >= 0);
  if (isKernel) {
    const how = KERNEL_SPANS[type];
    if (returns) return { keys: [place('tid')], nested: MOST_CALLS, thread: place('tid') };
    if (!how || place('kind') < 0) return null;
    const cpu = OF_CPUS.includes(type) && place('cpu') >= 0 ? place('cpu') : undefined;
    const thread = how.keys[0] === 'tid' ? place('tid') : undefined;
    return { ...how, edge: place('kind'), keys: places(how.keys), same: how.same && places(how.same), cpu, thread };
  }
  const edge = fields.findIndex((field) => field.name === 'edge' && field.number && field.unit === '');
  if (edge >= 0 && fields[edge].series.low >= 0 && fields[edge].series.high <= 1) {
    // The key of a span: the thread that writes, and the first plain number.
    const keys = [
      fields.findIndex((field) => field.name === 'writer_tid'),
      fields.findIndex((field, i) => i !== edge && field.number && field.unit === '' && !isFrame(field.name)),
    ];
    return { edge, begins: [0], keys: keys.filter((index) => index >= 0), nested: 1 };
  }
  const length = fields.findIndex((field) => field.number && SPAN_UNITS[field.unit] && LENGTH_NAMES.test(field.name));
  return length >= 0 ? { length, scale: SPAN_UNITS[fields[length].unit] } : null;
}

/** Calls `begin` and `end` for the elements, in the order of time, with the key and the element. */
function eachEdge({ times, fields, count }, how, returns, begin, end) {
  const keyOf = (of, i, first) => first + how.keys.map((index) => ` ${of[index].values[i]}`).join('');
  if (returns) {
    // Calls and returns have the thread at the same index.
    let at = 0;
    for (let i = 0; i <= count; i += 1) {
      const until = i < count ? times[i] : Infinity;
      for (; at < returns.count && returns.times[at] < until; at += 1) end(keyOf(returns.fields, at, ''), returns.times[at], at);
      if (i < count) begin(keyOf(fields, i, ''), i);
    }
    return;
  }
  const edges = fields[how.edge].values;
  for (let i = 0; i < count; i += 1) {
    if (how.begins.includes(edges[i])) begin(keyOf(fields, i, edges[i]), i);
    else if (how.begins.includes(edges[i] - 1)) end(keyOf(fields, i, edges[i] - 1), times[i], i);
  }
}

/** Begin and end of each span, in the order of begins, with the element of the begin (or the only
 *  one) and the element of the end.
 *  - A begin without an end lasts until `now`, or until its thread ended (`endOf`).
 *  - A begin whose end was missed lasts until the next one of its kind.
 *  - An end without a begin is left out. */
function findSpans(elements, how, { now, endOf, returns }) {
  const spans = [];
  const { times, fields, count } = elements;
  if (how.length !== undefined) {
    const lengths = fields[how.length].values;
    for (let i = 0; i < count; i += 1) {
      const length = lengths[i] * how.scale;
      if (length >= 0) spans.push([times[i] - length, times[i], i, i]);
    }
    return spans.sort((a, b) => a[0] - b[0]);
  }
  const open = new Map();
  const close = (span, t, i) => {
    span[1] = t;
    span[3] = i;
  };
  // An element for a thread and one for the CPU may describe the same span.
  const hasBegin = (i) => {
    if (!how.same) return false;
    for (const under of open.values()) {
      if (under.some((span) => how.same.every((index) => fields[index].values[span[2]] === fields[index].values[i]))) return true;
    }
    return false;
  };
  eachEdge(elements, how, returns, (key, i) => {
    if (hasBegin(i)) return;
    const under = open.get(key) ?? [];
    if (under.length >= how.nested) close(under.shift(), times[i], null);
    const span = [times[i], NaN, i, null];
    spans.push(span);
    under.push(span);
    open.set(key, under);
  }, (key, t, i) => {
    const under = open.get(key);
    if (!under) return;
    close(under.pop(), t, i);
    if (!under.length) open.delete(key);
  });
  for (const span of spans) {
    if (!Number.isNaN(span[1])) continue;
    span[1] = how.thread === undefined ? now : endOf(fields[how.thread].values[span[2]], span[0]);
  }
  return spans.sort((a, b) => a[0] - b[0]);
}

/** Overlapping spans are in different lanes, each span in the first lane that is free. Those of
 *  CPUs are in lanes of their CPUs (`cpu`, else null). Spans that find no lane are counted in
 *  `crowded`. */
class Spans {
  constructor(elements, how, around) {
    this.lanes = [];
    this.crowded = 0;
    const ends = [];
    const columns = [];
    const hasRoom = (cpu) => (cpu === null ? ends.length < MOST_LANES : columns.filter((lane) => lane.cpu === cpu).length < MOST_LANES_OF_CPU);
    for (const span of findSpans(elements, how, around)) {
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

  /** The span in a lane at `t`: begin, end, the element of the begin and that of the end, or
   *  null. */
  at(lane, t) {
    return this.lanes[lane]?.members[this.lanes[lane].intervals.find(t)] ?? null;
  }
}

/** The text of a span: its thread, its first field that is not one of the span's own, and its
 *  length. */
function spanText(row, [from, to, at]) {
  const { spanFields: how, elements: { fields } } = row;
  const isKernel = row.group.part === 'cpus';
  const labelField = isKernel ? row.labelField : fields.findIndex(({ name }, index) => index !== how.edge && index !== how.length && !isFrame(name));
  const parts = [];
  // For spans of a thread: the name of the thread.
  if (how.thread !== undefined && labelField !== how.thread) parts.push(row.run.nameOf(fields[how.thread].values[at], from));
  // A bare number does not help the reader; a name does.
  if (labelField >= 0) parts.push(isKernel || !fields[labelField].number ? fieldText(row, fields[labelField], at) : `${fields[labelField].name} ${fieldText(row, fields[labelField], at)}`);
  return [...parts, formatDuration(to - from)].join('  ');
}
