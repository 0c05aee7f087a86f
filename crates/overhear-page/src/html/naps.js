// SPDX-License-Identifier: MIT OR Apache-2.0
// The page of `overhear naps`: unused memory by process, site and allocation, or the estimate of
// the whole machine.

// Rows of the picture, and of tables: all others are in the JSON report.
const MOST_BARS = 40;
const MOST_ROWS = 1000;
const SVG = 'http://www.w3.org/2000/svg';

const bytesOf = (value) => formatBytes(Math.round(value));
const byteSeconds = (value) => `${bytesOf(value)}${THIN}s`;
const percent = (share) => `${formatDigits(share * 100, 3)}${THIN}%`;
const coldness = (cold) => (cold ? 'cold' : '');

function functionName(frame) {
  if (!frame) return null;
  if (frame.function) return frame.function;
  if (frame.file) return `${frame.file.split('/').pop()}+0x${Number(frame.file_offset ?? 0).toString(16)}`;
  return `0x${Number(frame.address).toString(16)}`;
}

// Functions of a stack in a table.
const MOST_FRAMES = 4;

function stackName(frames) {
  return list(frames).slice(0, MOST_FRAMES).map(functionName).join(' < ') || DASH;
}

const SITE_COLUMNS = [
  { head: 'Allocated by', value: (row) => stackName(row.stack), show: String, title: 'Calls, the innermost first' },
  { head: 'Allocations', value: (row) => row.allocations, show: count, number: true },
  { head: 'Size', value: (row) => row.bytes, show: bytesOf, number: true },
  { head: 'Live', value: (row) => row.live, show: count, number: true, title: 'At the end' },
  { head: 'Mean life', value: (row) => row.mean_life_ns, show: duration, number: true },
  { head: 'NAPs', value: (row) => row.naps, show: count, number: true, title: 'Non-accessed periods of at least the threshold' },
  { head: 'Idle byte s', value: (row) => row.nap_byte_seconds, show: byteSeconds, number: true, bar: true, title: 'Size x length of the NAPs' },
  { head: 'Idle', value: (row) => row.nap_byte_seconds / Math.max(row.life_byte_seconds, 1e-9), show: percent, number: true, title: 'Share of size x lifetime' },
  { head: 'MemProf', value: (row) => coldness(row.cold), show: String, title: 'Cold: a mean life of at least 200 s, and less than 0.05 accesses per byte and second' },
];

const ALLOCATION_COLUMNS = [
  { head: 'Address', value: (row) => `0x${Number(row.address).toString(16)}`, show: String },
  { head: 'Allocated by', value: (row) => row.site_name, show: String },
  { head: 'Call', value: (row) => row.kind, show: String },
  { head: 'Size', value: (row) => row.size, show: bytesOf, number: true },
  { head: 'Allocated', value: (row) => row.allocated_ns, show: duration, number: true },
  { head: 'Freed', value: (row) => row.freed_ns, show: duration, number: true },
  { head: 'Last access', value: (row) => row.last_access_ns, show: duration, number: true, title: 'The last observed access, or the allocation' },
  { head: 'Not after', value: (row) => row.last_access_before_ns, show: duration, number: true, title: 'The last access, observed or not, was no later than this' },
  { head: 'At', value: (row) => functionName(row.last_access_at), show: String, title: 'Function of the last observed access' },
  { head: 'NAPs', value: (row) => row.nap_count, show: count, number: true },
  { head: 'Idle byte s', value: (row) => row.nap_byte_seconds, show: byteSeconds, number: true, bar: true, title: 'Size x length of the NAPs' },
  { head: 'MemProf', value: (row) => coldness(row.cold), show: String, title: 'Cold: a life of at least 200 s, and less than 0.05 accesses per byte and second' },
];

function drawn(tag, attributes, children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...(children ?? []));
  return element;
}

function titled(element, text) {
  const title = document.createElementNS(SVG, 'title');
  title.textContent = text;
  element.prepend(title);
  return element;
}

/** A bar for each life, in which the NAPs are filled. */
function lifeChart(process, allocations) {
  const width = 1000;
  const left = 260;
  const high = 16;
  const from = process.started_ns;
  const to = Math.max(process.ended_ns, from + 1);
  const x = (time) => left + ((Math.min(Math.max(time, from), to) - from) / (to - from)) * (width - left);
  const rows = allocations.map((one, row) => {
    const y = row * high;
    const end = one.freed_ns ?? to;
    const label = drawn('text', { x: left - 8, y: y + high - 5, class: 'chart-label', 'text-anchor': 'end' });
    label.textContent = `${bytesOf(one.size)} ${one.site_name.split(' < ')[0].slice(0, 28)}`;
    const life = drawn('line', { x1: x(one.allocated_ns), x2: x(end), y1: y + high / 2, y2: y + high / 2, class: 'chart-base' });
    const naps = list(one.naps).map((nap) => titled(
      drawn('rect', { x: x(nap.start_ns), y: y + 2, width: Math.max(x(nap.end_ns) - x(nap.start_ns), 1), height: high - 5, class: 'chart-fill nap' }),
      `not accessed for ${formatDuration(nap.end_ns - nap.start_ns)}, from ${formatDuration(nap.start_ns)} to ${formatDuration(nap.end_ns)}${nap.end === 'open' ? ' (the end of the observation)' : ''}${nap.at ? `; then accessed by ${functionName(nap.at)}` : ''}`,
    ));
    return drawn('g', {}, [label, life, ...naps]);
  });
  const chart = drawn('svg', { viewBox: `0 0 ${width} ${allocations.length * high}`, class: 'chart', role: 'img' }, rows);
  return titled(chart, `Lives and NAPs from ${formatDuration(from)} to ${formatDuration(to)}`);
}

function processFacts(report, process) {
  const watched = process.watched;
  const facts = [
    fact('Watched', plural(watched.allocations, 'allocation'), bytesOf(watched.bytes)),
    fact('Cost', percent(process.overhead), `of the CPU time, target ${percent(report.budget)}`),
    fact('More memory', percent(process.space_overhead), 'at most, of what was watched'),
    fact('Accesses found', formatCount(watched.accesses), plural(watched.protections, 'protection')),
    fact('Back end', process.backend, process.backend_reason),
  ];
  const missed = process.unwatched;
  const causes = { budget: 'budget', space: 'limit of memory', full: 'table is full', excluded: 'program changes the mapping' };
  for (const [cause, text] of Object.entries(causes)) {
    if (missed[cause] > 0) facts.push(fact('Not watched', plural(missed[cause], 'allocation'), text));
  }
  if (process.stopped || !process.complete) {
    facts.push(fact('Incomplete', process.stopped || 'the process was killed', 'what came later is not known'));
  }
  return make('div', 'facts', facts);
}

function showProcess(report, process) {
  const names = new Map(list(process.sites).map((site) => [site.site, stackName(site.stack)]));
  const idle = list(process.allocations).filter((one) => one.nap_count > 0)
    .map((one) => ({ ...one, site_name: names.get(one.site) ?? DASH }));
  const sites = list(process.sites).filter((site) => site.naps > 0);
  const blocks = [make('h2', '', `${process.comm} (${process.pid})`), processFacts(report, process)];
  if (sites.length) {
    blocks.push(make('div', 'table-block', [lifeChart(process, idle.slice(0, MOST_BARS))]));
    blocks.push(sortableTable('Sites', SITE_COLUMNS, sites.slice(0, MOST_ROWS), 'Idle byte s'));
    blocks.push(sortableTable('Allocations', ALLOCATION_COLUMNS, idle.slice(0, MOST_ROWS), 'Idle byte s'));
    const omitted = idle.length - Math.min(idle.length, MOST_ROWS) + (process.allocations_omitted ?? 0);
    if (omitted > 0) blocks.push(make('p', 'notice', `${plural(omitted, 'allocation')} with NAPs more, which are in the totals of their sites`));
  } else {
    blocks.push(make('p', 'notice', 'No NAP was found.'));
  }
  return make('section', 'process', blocks);
}

const REGION_COLUMNS = [
  { head: 'From', value: (row) => `0x${Number(row.start).toString(16)}`, show: String },
  { head: 'Size', value: (row) => row.end - row.start, show: bytesOf, number: true, bar: true },
  { head: 'Samples accessed', value: (row) => row.accesses, show: count, number: true, title: 'In the last aggregation of DAMON' },
  { head: 'Age', value: (row) => row.age_ns, show: duration, number: true, title: 'Time since the number of accesses changed' },
];

function showMachine(report) {
  byId('command').textContent = 'Idle memory of the machine: an estimate by DAMON';
  byId('facts').append(
    fact('Estimated idle', bytesOf(report.idle_bytes), `of ${bytesOf(report.bytes)}`),
    fact('Not accessed for', formatDuration(report.threshold_ns), 'at least'),
    fact('Observed', formatDuration(report.duration_ns), 'one page per region is sampled'),
  );
  byId('processes').append(sortableTable('Regions', REGION_COLUMNS, list(report.regions).slice(0, MOST_ROWS), 'Age'));
}

function showProgram(report) {
  byId('command').textContent = list(report.command).map(quoteArgument).join(' ');
  const processes = list(report.processes);
  const idle = (process) => list(process.sites).reduce((sum, site) => sum + site.nap_byte_seconds, 0);
  byId('facts').append(
    fact('NAPs of at least', formatDuration(report.threshold_ns)),
    fact('Smallest allocation', bytesOf(report.min_size_bytes)),
    fact('Processes', formatCount(processes.length)),
    fact('Idle byte s', byteSeconds(processes.reduce((sum, process) => sum + idle(process), 0)), 'size x length of all NAPs'),
  );
  const ordered = processes.slice().sort((a, b) => idle(b) - idle(a));
  byId('processes').append(...ordered.map((process) => showProcess(report, process)));
}

const report = JSON.parse(byId('report-data').textContent);
if (report.estimate) showMachine(report);
else showProgram(report);
// Everything is drawn: tests wait for this.
window.overhearNaps = true;
