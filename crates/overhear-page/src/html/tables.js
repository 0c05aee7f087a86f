// SPDX-License-Identifier: MIT OR Apache-2.0
// Tables that are sorted by a click on a column's head. A column defines its value, its sort key,
// and its text.

const duration = (value) => formatDuration(value, true);
const count = (value) => (value === null || value === undefined ? DASH : formatCount(value));

const THREAD_COLUMNS = [
  { head: 'Thread', value: (row) => String(row.comm ?? ''), show: (value) => value || DASH },
  { head: 'PID', value: (row) => row.pid, show: String, number: true },
  { head: 'TID', value: (row) => row.tid, show: String, number: true },
  { head: 'Running', value: (row) => row.run_ns, show: duration, number: true, bar: true },
  { head: 'Waiting for CPU', value: (row) => row.runnable_ns, show: duration, number: true, title: 'Runnable without a CPU: from the enqueue (sched_wakeup) or the preemption to the run, as schedstat counts it' },
  { head: 'Blocked', value: (row) => row.blocked_ns, show: duration, number: true },
  { head: 'Voluntary', value: (row) => row.switches_voluntary, show: count, number: true, title: 'Switches that the thread asked for by blocking', group: 'Switches' },
  { head: 'Involuntary', value: (row) => row.switches_involuntary, show: count, number: true, title: 'Switches by which another thread displaced it', group: 'Switches' },
  { head: 'Migrations', value: (row) => row.migrations, show: count, number: true },
  { head: 'Median', value: (row) => row.wakeup_latency_ns?.median, show: duration, number: true, title: 'From the beginning of the wake-up (sched_waking) to the run', group: 'Wake-up latency' },
  { head: '99 %', value: (row) => row.wakeup_latency_ns?.p99, show: duration, number: true, title: 'From the beginning of the wake-up (sched_waking) to the run', group: 'Wake-up latency' },
  { head: 'Max', value: (row) => row.wakeup_latency_ns?.max, show: duration, number: true, title: 'From the beginning of the wake-up (sched_waking) to the run', group: 'Wake-up latency' },
];

const SENSOR_COLUMNS = [
  { head: 'Sensor', value: (row) => [row.id, row.instance].filter((part) => part !== undefined && part !== null && part !== '').join(' '), show: (value) => value || DASH },
  { head: 'Task', value: (row) => String(row.task ?? ''), show: (value) => value || DASH },
  { head: 'Type', value: (row) => String(row.type ?? ''), show: (value) => value || DASH },
  { head: 'Elements', value: (row) => row.elements, show: count, number: true },
  { head: 'Missed', value: (row) => row.missed, show: count, number: true, alarm: (value) => value > 0 },
  { head: 'Actual', value: (row) => row.rate_hz, show: (value) => `${formatDigits(value, 5)}${THIN}Hz`, number: true, group: 'Rate' },
  { head: 'Declared', value: (row) => (row.declared?.period_ns > 0 ? 1e9 / row.declared.period_ns : null), show: (value) => `${formatDigits(value, 5)}${THIN}Hz`, number: true, group: 'Rate' },
  { head: 'Min', value: (row) => row.interval_ns?.min, show: duration, number: true, group: 'Interval' },
  { head: 'Median', value: (row) => row.interval_ns?.median, show: duration, number: true, group: 'Interval' },
  { head: '99 %', value: (row) => row.interval_ns?.p99, show: duration, number: true, group: 'Interval' },
  { head: 'Max', value: (row) => row.interval_ns?.max, show: duration, number: true, group: 'Interval' },
];

const FIELD_COLUMNS = [
  { head: 'Field', value: (row) => String(row.name ?? ''), show: (value) => value || DASH },
  { head: 'Sensor', value: (row) => row.sensor, show: String },
  { head: 'Min', value: (row) => row.min, show: (value, row) => formatValue(value, row.unit), number: true },
  { head: 'Mean', value: (row) => row.mean, show: (value, row) => formatValue(value, row.unit), number: true },
  { head: 'Median', value: (row) => row.median, show: (value, row) => formatValue(value, row.unit), number: true },
  { head: '99 %', value: (row) => row.p99, show: (value, row) => formatValue(value, row.unit), number: true },
  { head: 'Max', value: (row) => row.max, show: (value, row) => formatValue(value, row.unit), number: true },
];

const isGiven = (value) => value !== null && value !== undefined && value !== '' && !Number.isNaN(value);

/** Rows in the order of `column`. Values that were not measured come last in either direction. */
function sortRows(rows, column, ascending) {
  return rows.slice().sort((a, b) => {
    const x = column.value(a);
    const y = column.value(b);
    if (!isGiven(x) || !isGiven(y)) return Number(isGiven(y)) - Number(isGiven(x));
    const order = column.number ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
    return ascending ? order : -order;
  });
}

function tableCell(column, row, most, first) {
  const value = column.value(row);
  const cell = make(first ? 'th' : 'td', column.number ? 'number' : '');
  if (first) cell.scope = 'row';
  if (!isGiven(value)) {
    cell.textContent = DASH;
    cell.classList.add('none');
    cell.title = 'not measured';
    return cell;
  }
  cell.textContent = column.show(value, row);
  if (column.alarm?.(value)) cell.classList.add('alarm');
  if (column.bar && most > 0) {
    cell.classList.add('with-bar');
    cell.style.setProperty('--share', String(value / most));
  }
  return cell;
}

/** A row above the heads that names what several columns have in common. */
function groupRow(columns) {
  const row = make('tr', 'groups');
  for (let i = 0; i < columns.length;) {
    let end = i + 1;
    while (end < columns.length && columns[i].group && columns[end].group === columns[i].group) end += 1;
    const cell = make(columns[i].group ? 'th' : 'td', columns[i].group ? 'group' : '', columns[i].group ?? '');
    if (columns[i].group) cell.scope = 'colgroup';
    cell.colSpan = end - i;
    row.append(cell);
    i = end;
  }
  return row;
}

function sortableTable(title, columns, rows, sorted) {
  // A column without any value is left out.
  const shown = columns.filter((column, i) => i === 0 || rows.some((row) => isGiven(column.value(row))));
  const body = make('tbody');
  const head = make('tr');
  let current = sorted ? shown.find((column) => column.head === sorted) ?? null : null;
  let ascending = false;

  const fill = () => {
    const ordered = current ? sortRows(rows, current, ascending) : rows;
    const most = new Map(shown.filter((column) => column.bar).map((column) => [column, rows.reduce((sum, row) => Math.max(sum, Number(column.value(row)) || 0), 0)]));
    body.replaceChildren(...ordered.map((row) => make('tr', '', shown.map((column, i) => tableCell(column, row, most.get(column), i === 0)))));
    for (const [i, cell] of [...head.children].entries()) {
      cell.setAttribute('aria-sort', shown[i] === current ? (ascending ? 'ascending' : 'descending') : 'none');
    }
  };
  for (const column of shown) {
    const button = make('button', '', column.head);
    button.type = 'button';
    if (column.title) button.title = column.title;
    button.addEventListener('click', () => {
      // The first click sorts numbers from the largest down, names from A on.
      ascending = current === column ? !ascending : !column.number;
      current = column;
      fill();
    });
    const cell = make('th', column.number ? 'number' : '', [button]);
    cell.scope = 'col';
    head.append(cell);
  }
  fill();
  const grouped = shown.some((column) => column.group);
  const table = make('table', 'data', [make('thead', '', [grouped ? groupRow(shown) : null, head]), body]);
  table.setAttribute('aria-label', title);
  const scroll = make('div', 'table-scroll', [table]);
  scroll.tabIndex = 0;
  scroll.setAttribute('role', 'region');
  scroll.setAttribute('aria-label', title);
  return make('div', 'table-block', [make('div', 'section-head', [make('h2', '', title), make('span', 'count', plural(rows.length, 'row'))]), scroll]);
}

function showTables(report) {
  const threads = list(report.threads);
  const sensors = list(report.sensors);
  const blocks = [];
  if (threads.length) blocks.push(sortableTable('Threads', THREAD_COLUMNS, threads, 'Running'));
  if (sensors.length) {
    blocks.push(sortableTable('Sensors', SENSOR_COLUMNS, sensors, null));
    const fields = sensors.filter((sensor) => sensor.type !== SAMPLE_TYPE).flatMap((sensor) => list(sensor.fields).map((field) => ({ ...field, sensor: String(sensor.id ?? '') })));
    if (fields.length) blocks.push(sortableTable('Values', FIELD_COLUMNS, fields, null));
  }
  byId('tables').replaceChildren(...blocks);
  byId('tables').hidden = !blocks.length;
}
