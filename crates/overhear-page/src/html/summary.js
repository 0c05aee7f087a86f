// SPDX-License-Identifier: MIT OR Apache-2.0
// The program, the missed elements, and the sources: messages and a few large numbers.

const SIGNALS = { 1: 'SIGHUP', 2: 'SIGINT', 3: 'SIGQUIT', 4: 'SIGILL', 6: 'SIGABRT', 7: 'SIGBUS', 8: 'SIGFPE', 9: 'SIGKILL', 11: 'SIGSEGV', 13: 'SIGPIPE', 14: 'SIGALRM', 15: 'SIGTERM' };

const CAUSES = {
  overwritten: 'overwritten before the monitor had read them',
  late: 'published after the merge had passed their time',
  nested: 'refused in the middle of another write',
  full: 'refused for want of a free element or lane',
  kernel: 'lost by the kernel',
  corrupt: 'damaged in the stream or in the recording',
  epoch: 'the clock jumped',
  inconsistent: 'never recorded, as the elements around them prove',
  budget: 'not written, to keep a budget',
  disk: 'left out of the recording, to keep its rate or size',
  unsampled: 'not sampled in their period',
  unrecorded: 'evaluated, but not written to the trace',
};

function svg(tag, attributes, children = []) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function icon(path) {
  return svg('svg', { viewBox: '0 0 20 20', width: 20, height: 20, 'aria-hidden': 'true' }, [
    svg('path', { d: path, fill: 'none', stroke: 'currentColor', 'stroke-width': 2, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }),
  ]);
}

function fact(name, value, detail) {
  return make('div', 'fact', [make('div', 'fact-name', name), make('div', 'fact-value', value), detail ? make('div', 'fact-detail', detail) : null]);
}

/** An argument as in a shell: quoted only if a shell needs it. */
function quoteArgument(argument) {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${String(argument).replace(/'/g, "'\\''")}'`;
}

function showSummary(report) {
  const command = list(report.command).map(quoteArgument).join(' ');
  byId('command').textContent = command || 'A run without a name';
  byId('command').title = command;
  byId('version').textContent = report.overhear_version ? `overhear ${report.overhear_version}` : '';

  const facts = [];
  if (Number.isFinite(report.duration_ns)) facts.push(fact('Duration', formatDuration(report.duration_ns)));
  if (report.exit && typeof report.exit === 'object') {
    const { code, signal } = report.exit;
    if (Number.isFinite(signal)) facts.push(fact('Ended by', SIGNALS[signal] ?? `signal ${signal}`, SIGNALS[signal] ? `signal ${signal}` : ''));
    else if (Number.isFinite(code)) facts.push(fact('Exit status', String(code), code === 0 ? 'success' : 'failure'));
  }
  const threads = list(report.threads);
  if (threads.length) {
    const processes = new Set(threads.map((thread) => thread.pid)).size;
    facts.push(fact('Threads', formatCount(threads.length), processes > 1 ? `in ${formatCount(processes)} processes` : 'in one process'));
  }
  const sensors = list(report.sensors);
  if (sensors.length) {
    const elements = sensors.reduce((sum, sensor) => sum + (Number(sensor.elements) || 0), 0);
    facts.push(fact('Sensors', formatCount(sensors.length), plural(elements, 'element')));
  }
  if (report.trace) {
    const leftOut = Number(report.trace.left_out) || 0;
    if (leftOut) facts.push(fact('Left out', plural(leftOut, 'event'), 'to keep the limits of the recording'));
    facts.push(fact('Trace', plural(Number(report.trace.events) || 0, 'event'), formatBytes(Number(report.trace.bytes) || 0)));
  }
  const kernel = list(report.sources).find((source) => source.name === 'kernel');
  if (kernel) {
    const active = { bpf: 'BPF', perf: 'perf', none: 'none' }[kernel.active] ?? String(kernel.active);
    facts.push(fact('Kernel sensor', active, kernel.active === 'none' ? 'see below' : ''));
  }
  const { overhead } = report;
  if (Number.isFinite(overhead?.total_ns)) {
    const share = Number.isFinite(overhead.share) ? `about ${(overhead.share * 100).toFixed(2)} % of the time on a CPU` : 'estimated';
    facts.push(fact('Monitoring overhead', formatDuration(overhead.total_ns), share));
  }
  if (report.compensated === true) {
    const earlier = Number(report.compensation?.removed_ns);
    const texts = Number.isFinite(earlier) ? [`the run ends ${formatDuration(earlier)} earlier`] : [];
    if (report.compensation?.along_wakeups === false) texts.push('no wake-ups carry delays');
    facts.push(fact('Times', 'compensated', texts.join('; ')));
  }
  const holder = byId('facts');
  holder.replaceChildren(...facts);
  holder.hidden = !facts.length;
}

function showLosses(report) {
  const holder = byId('losses');
  const losses = list(report.losses);
  const counted = losses.reduce((sum, loss) => sum + Number(loss.missed), 0);
  const total = Number.isFinite(report.missed_total) ? Math.max(report.missed_total, counted) : counted;

  const notConnected = Number(report.not_connected) || 0;

  if (total > 0 || losses.length || notConnected || report.complete === false) {
    // A loss of no element is damage of unknown extent.
    const what = [];
    if (total > 0) what.push(`${plural(total, 'element')} missed`);
    if (notConnected) what.push(`${plural(notConnected, 'sensor')} not connected`);
    const text = make('div', '', [
      make('strong', '', what.length ? what.join(', ') : 'Incomplete: how much is missing is not known.'),
      make('span', '', ' Results that depend on what was missed are inconclusive.'),
    ]);
    const rows = losses.map((loss) => make('tr', '', [
      make('th', '', loss.stream),
      make('td', 'number', formatCount(Number(loss.missed))),
      make('td', 'number', formatCount(Number(loss.gaps))),
      make('td', '', CAUSES[loss.cause] ?? loss.cause),
    ]));
    const head = make('thead', '', [make('tr', '', [make('th', '', 'Stream'), make('th', 'number', 'Missed'), make('th', 'number', 'Gaps'), make('th', '', 'Cause')])]);
    for (const cell of head.querySelectorAll('th')) cell.scope = 'col';
    for (const row of rows) row.firstChild.scope = 'row';
    const table = losses.length ? make('div', 'table-scroll', [make('table', 'loss-table', [head, make('tbody', '', rows)])]) : null;
    holder.replaceChildren(make('div', 'verdict bad', [icon('M10 3 18.5 17H1.5ZM10 8.5v3.5M10 14.6v.1'), text]), ...(table ? [table] : []));
  } else if (report.goes_on) {
    holder.replaceChildren(make('div', 'verdict unsure', [icon('M10 5v6M10 14.6v.1'), make('div', '', [make('strong', '', 'So far nothing missed.'), make('span', '', ' The run goes on.')])]));
  } else if (report.missed_total === 0) {
    // A run that is violated or inconclusive is not marked as good because nothing was missed.
    const kind = isGood(report) ? 'verdict good' : 'verdict plain';
    holder.replaceChildren(make('div', kind, [icon('M4 10.5 8.2 15 16.5 5.5'), make('div', '', [make('strong', '', 'Complete: nothing missed.'), make('span', '', ' Every element of every stream was read.')])]));
  } else {
    holder.replaceChildren(make('div', 'verdict unsure', [icon('M10 5v6M10 14.6v.1'), make('div', '', [make('strong', '', 'Losses unknown.'), make('span', '', ' This report does not say whether anything was missed.')])]));
  }
}

/** Further notes: refused sensors, damaged streams, torn recordings. */
function showNotes(report) {
  const holder = byId('notes');
  const notes = list(report.notes);
  holder.replaceChildren(...notes.map((note) => make('li', '', String(note))));
  holder.hidden = !notes.length;
}

function showSources(report) {
  const holder = byId('sources');
  const sources = list(report.sources);
  const parts = [];
  if (sources.length) {
    parts.push(make('div', 'section-head', [make('h2', '', 'How it was heard')]));
    parts.push(make('dl', 'sources', sources.flatMap((source) => [
      make('dt', '', [`${source.name ?? ''} `, make('span', source.active === 'none' ? 'badge off' : 'badge', source.active ?? '')]),
      make('dd', '', source.message ?? ''),
    ])));
  }
  if (report.trace?.directory) parts.push(make('p', 'where', ['The trace is in ', make('code', '', report.trace.directory), ' (CTF 1.8).']));
  holder.replaceChildren(...parts);
  holder.hidden = !parts.length;
}
