// SPDX-License-Identifier: MIT OR Apache-2.0
// Tables of samples: totals per thread, values per job and per sample, anomalous jobs.

const samplerName = (sampler) => [sampler.id, sampler.instance].filter((part) => part !== undefined && part !== null && part !== '').join(' ');
const sampledName = (task) => String(task.comm || (task.tid ? '' : task.pid ? 'process' : 'system'));
const sampledId = (value) => (value ? value : null);
const shareText = (value) => formatShare(value);
const fourDigits = (value) => formatDigits(value, 4);

const TOTAL_COLUMNS = [
  { head: 'Thread', value: (row) => sampledName(row.task), show: (value) => value || DASH },
  { head: 'PID', value: (row) => sampledId(row.task.pid), show: String, number: true },
  { head: 'TID', value: (row) => sampledId(row.task.tid), show: String, number: true },
  { head: 'Sampler', value: (row) => samplerName(row.sampler), show: String },
  { head: 'Quantity', value: (row) => String(row.total.name ?? ''), show: String },
  { head: 'Total', value: (row) => row.total.total, show: (value, row) => `${row.sampler.complete === false ? '≥ ' : ''}${formatValue(value, row.total.unit)}`, number: true, title: '≥: samples were missed, so the total is a lower bound' },
  { head: 'Duration', value: (row) => row.task.duration_ns, show: duration, number: true, title: 'The time to which the total belongs' },
  { head: 'Per second', value: (row) => row.total.per_second, show: fourDigits, number: true },
  { head: 'Per cycle', value: (row) => (row.total.name === 'instructions' ? row.task.ipc : null), show: fourDigits, number: true, title: 'Instructions per cycle (IPC)' },
  { head: 'Per 1000 instructions', value: (row) => row.total.per_1000_instructions, show: fourDigits, number: true },
  { head: 'Share', value: (row) => row.total.share, show: shareText, number: true, title: 'Share of the duration' },
];

const SAMPLED_COLUMNS = [
  { head: 'Thread', value: (row) => sampledName(row.task), show: (value) => value || DASH },
  { head: 'TID', value: (row) => sampledId(row.task.tid), show: String, number: true },
  { head: 'Sampler', value: (row) => samplerName(row.sampler), show: String },
  { head: 'Per', value: (row) => row.per, show: String },
  { head: 'Quantity', value: (row) => String(row.values.name ?? ''), show: String },
  { head: 'Count', value: (row) => row.values.count, show: count, number: true },
  ...[['Min', 'min'], ['Mean', 'mean'], ['Median', 'median'], ['90 %', 'p90'], ['99 %', 'p99'], ['Max', 'max']].map(([head, name]) => (
    { head, value: (row) => row.values[name], show: (value, row) => formatValue(value, row.values.unit), number: true }
  )),
];

const ANOMALY_COLUMNS = [
  { head: 'Thread', value: (row) => sampledName(row.anomaly), show: (value) => value || DASH },
  { head: 'TID', value: (row) => sampledId(row.anomaly.tid), show: String, number: true },
  { head: 'Sampler', value: (row) => samplerName(row.sampler), show: String },
  { head: 'Job', value: (row) => row.anomaly.job, show: count, number: true },
  { head: 'Jobs', value: (row) => row.anomaly.jobs, show: count, number: true, title: 'Consecutive anomalous jobs' },
  { head: 'Duration', value: (row) => row.anomaly.duration_ns || null, show: duration, number: true },
  { head: 'What was off, in spreads', value: (row) => list(row.anomaly.deviations).map((one) => `${one.name} ${formatValue(one.value, one.unit)}, usually ${formatValue(one.usual, one.unit)} (${one.times > 0 ? '+' : ''}${formatDigits(one.times, 3)})`).join('; '), show: String },
];

/** What was judged, in a sentence. */
function judgedText(sampler) {
  const tasks = list(sampler.tasks).map((task) => task.judged).filter((judged) => judged);
  const sum = (name) => tasks.reduce((all, judged) => all + (Number(judged[name]) || 0), 0);
  const from = `a thread is judged from its job ${formatCount(sampler.judged_from)} on`;
  if (!tasks.length) return '';
  if (!sum('judged')) return `${samplerName(sampler)}: nothing was judged; ${from}.`;
  const unlisted = Number(sampler.anomalies_not_listed) || 0;
  const rest = unlisted ? ` ${plural(unlisted, 'later anomaly', 'later anomalies')} are not listed.` : '';
  return `${samplerName(sampler)}: ${formatCount(sum('anomalous'))} of ${plural(sum('judged'), 'judged job')} are anomalous; ${from}.${rest}`;
}

function showSamplers(report) {
  const samplers = list(report.samplers);
  const tasks = samplers.flatMap((sampler) => list(sampler.tasks).map((task) => ({ sampler, task })));
  const totals = tasks.flatMap(({ sampler, task }) => list(task.totals).map((total) => ({ sampler, task, total })));
  const values = tasks.flatMap(({ sampler, task }) => [['job', task.jobs], ['sample', task.samples]].flatMap(([per, series]) => list(series?.values).map((one) => ({ sampler, task, per, values: one }))));
  const anomalies = samplers.flatMap((sampler) => list(sampler.anomalies).map((anomaly) => ({ sampler, anomaly })));
  const blocks = [];
  if (anomalies.length) blocks.push(sortableTable('Anomalous jobs', ANOMALY_COLUMNS, anomalies, null));
  const sentences = samplers.map(judgedText).filter((text) => text);
  if (sentences.length) blocks.push(make('p', 'notice', sentences.join(' ')));
  if (totals.length) blocks.push(sortableTable('Samples: totals', TOTAL_COLUMNS, totals, null));
  if (values.length) blocks.push(sortableTable('Samples: values', SAMPLED_COLUMNS, values, null));
  byId('samplers').replaceChildren(...blocks);
  byId('samplers').hidden = !blocks.length;
}
