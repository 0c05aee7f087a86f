// SPDX-License-Identifier: MIT OR Apache-2.0
// The budget: the overhead over time against its target, and the sensors that share it.

const percent = (share) => (Number.isFinite(share) ? `${(share * 100).toFixed(2)}${THIN}%` : DASH);
const withError = (value, error, show) => (Number.isFinite(error) ? `${show(value)} ± ${show(error)}` : show(value));
const nanoseconds = (value) => `${value.toFixed(1)}${THIN}ns`;

const BUDGET_COLUMNS = [
  { head: 'Sensor', value: (row) => String(row.name ?? ''), show: (value) => value || DASH },
  { head: 'On', value: (row) => row.share_on, show: (value) => formatShare(value), number: true, title: 'Share of the writes that were made, or of the CPU time in which the sensor was on' },
  { head: 'Cost', value: (row) => row.cost_ns, show: (value, row) => withError(value, row.cost_error_ns, formatDuration), number: true, bar: true },
  { head: 'Price', value: (row) => row.price_ns, show: (value, row) => withError(value, row.price_error_ns, nanoseconds), number: true, title: 'CPU time that an element costs the program' },
  { head: 'Written', value: (row) => row.written, show: count, number: true },
  { head: 'Skipped', value: (row) => row.skipped, show: count, number: true, title: 'Writes that were not made, to keep the budget' },
];

/** The overhead in each piece of the run, its worst window, and the target. */
function budgetChart(budget) {
  const points = list(budget.course).filter((point) => [point.from_ns, point.to_ns, point.overhead].every(Number.isFinite) && point.to_ns > point.from_ns);
  const target = Number(budget.target) || 0;
  const figure = make('figure', 'histogram');
  figure.append(make('figcaption', '', [make('span', 'chart-title', 'Overhead over time'), make('span', 'chart-detail', `target ${percent(target)}`)]));
  if (!points.length) {
    figure.append(make('p', 'empty', 'The run was shorter than a window.'));
    return figure;
  }
  const { width, height, left, right, bottom } = CHART;
  const base = height - bottom;
  const plotHeight = base - CHART.top;
  const begin = points[0].from_ns;
  const length = points[points.length - 1].to_ns - begin;
  const worst = Math.max(...points.map((point) => Number(point.worst_window) || 0));
  const top = roundUp(Math.max(1e-6, 1.25 * target, worst, ...points.map((point) => point.overhead)));
  const x = (ns) => left + ((ns - begin) / length) * (width - left - right);
  const y = (share) => base - (share / top) * plotHeight;
  const children = [];
  for (let i = 0; i <= 4; i += 1) {
    const at = (top * i) / 4;
    children.push(svg('line', { x1: left, x2: width - right, y1: y(at), y2: y(at), class: i === 0 ? 'chart-base' : 'chart-grid' }));
    if (i % 2 === 0) children.push(svg('text', { x: left - 8, y: y(at) + 4, class: 'chart-label', 'text-anchor': 'end' }, [`${formatDigits(at * 100, 3)}${THIN}%`]));
  }
  for (const [ns, anchor] of [[begin, 'start'], [begin + length, 'end']]) {
    children.push(svg('text', { x: x(ns), y: base + 18, class: 'chart-label', 'text-anchor': anchor }, [formatDuration(ns - begin)]));
  }
  for (const point of points) {
    const wide = Math.max(1, x(point.to_ns) - x(point.from_ns));
    const high = Math.max(1, base - y(point.overhead));
    const text = `${formatDuration(point.from_ns - begin)} to ${formatDuration(point.to_ns - begin)}: ${percent(point.overhead)}, worst window ${percent(point.worst_window)}`;
    children.push(svg('g', { class: 'chart-bar' }, [
      svg('title', {}, [text]),
      svg('rect', { x: x(point.from_ns), y: CHART.top, width: wide, height: plotHeight, class: 'chart-hit' }),
      svg('rect', { x: x(point.from_ns), y: base - high, width: wide, height: high, class: 'chart-fill' }),
    ]));
  }
  children.push(svg('line', { x1: left, x2: width - right, y1: y(target), y2: y(target), class: 'chart-target' }));
  const label = `Overhead over ${formatDuration(length)}: ${percent(budget.observed)} of the CPU time, target ${percent(target)}, worst window ${percent(worst)}`;
  figure.append(svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label, class: 'chart' }, children));
  return figure;
}

function showBudget(report) {
  const holder = byId('budget');
  const { budget } = report;
  holder.hidden = !budget;
  if (!budget) return;
  const sensors = list(budget.sensors);
  const observed = withError(budget.observed, budget.observed_error, percent);
  holder.replaceChildren(
    make('div', 'section-head', [make('h2', '', 'Budget'), make('span', 'count', `observing took about ${observed} of the CPU time, of ${percent(budget.target)} permitted`)]),
    make('div', 'charts', [budgetChart(budget)]),
    ...(sensors.length ? [sortableTable('Sensors of the budget', BUDGET_COLUMNS, sensors, 'Cost')] : []),
  );
}
