// SPDX-License-Identifier: MIT OR Apache-2.0
// Two runs next to each other: their totals in one table, with the changes. The time-line shows
// both on one scale, and each starts at its own begin.

function totals(report) {
  const threads = list(report.threads);
  const sum = (name) => {
    const given = threads.map((thread) => thread[name]).filter(Number.isFinite);
    return given.length ? given.reduce((all, value) => all + value, 0) : null;
  };
  const latency = (name) => {
    const given = threads.map((thread) => thread.wakeup_latency_ns?.[name]).filter(Number.isFinite);
    return given.length ? Math.max(...given) : null;
  };
  return [
    ['Duration', report.duration_ns, 'ns'],
    ['Threads', threads.length, ''],
    ['Running', sum('run_ns'), 'ns'],
    ['Waiting for a CPU', sum('runnable_ns'), 'ns'],
    ['Blocked', sum('blocked_ns'), 'ns'],
    ['Voluntary switches', sum('switches_voluntary'), ''],
    ['Involuntary switches', sum('switches_involuntary'), ''],
    ['Migrations', sum('migrations'), ''],
    ['Longest wake-up latency', latency('max'), 'ns'],
    ['Greatest median of a thread', latency('median'), 'ns'],
    ['Elements missed', report.missed_total, ''],
  ];
}

/** The change from `a` to `b`: a difference, and a ratio if there is one. */
function changeText(a, b, unit) {
  if (!Number.isFinite(a) || !Number.isFinite(b)) return DASH;
  if (a === b) return 'equal';
  const difference = `${b > a ? '+' : ''}${formatValue(b - a, unit)}`;
  return a > 0 ? `${difference} (\u00d7${THIN}${formatDigits(b / a, 3)})` : difference;
}

function showComparison(runs) {
  const holder = byId('comparison');
  holder.hidden = runs.length < 2;
  if (runs.length < 2) return;
  const [a, b] = runs.map((run) => totals(run.report));
  const rows = a.map(([name, value, unit], i) => {
    const cells = [value, b[i][1]].map((one) => make('td', 'number', formatValue(Number.isFinite(one) ? one : null, unit)));
    const head = make('th', '', name);
    head.scope = 'row';
    return make('tr', '', [head, ...cells, make('td', 'number', changeText(value, b[i][1], unit))]);
  });
  const heads = ['', 'A', 'B', 'From A to B'].map((name, i) => {
    const cell = make('th', i ? 'number' : '', name);
    cell.scope = 'col';
    return cell;
  });
  const table = make('table', 'loss-table', [make('thead', '', [make('tr', '', heads)]), make('tbody', '', rows)]);
  const names = make('dl', 'comparison-names', runs.flatMap((run, i) => [
    make('dt', '', 'AB'[i]),
    make('dd', '', [make('code', '', run.label), ` ${list(run.report.command).map(quoteArgument).join(' ')}`, isGood(run.report) ? (run.report.complete === false ? ' (incomplete)' : '') : ` (${run.report.outcome})`]),
  ]));
  holder.replaceChildren(
    make('div', 'section-head', [make('h2', '', 'Comparison of two runs')]),
    names,
    make('div', 'table-scroll', [table]),
    make('p', 'notice', 'What stands above, and histograms and tables below, are those of run A.'),
  );
}
