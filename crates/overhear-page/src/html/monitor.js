// SPDX-License-Identifier: MIT OR Apache-2.0
// Results of the monitor of overhear.toml: its verdict with the reason, its sensors and updates,
// and its reactions.

const named = (head, key) => ({ head, value: (row) => String(row[key] ?? ''), show: (value) => value || DASH });
const counted = (head, key, more = {}) => ({ head, value: (row) => row[key], show: count, number: true, ...more });
const timed = (head, key) => ({ head, value: (row) => row[key], show: duration, number: true });
const bad = { alarm: (value) => value > 0 };

const GUARANTEED_COLUMNS = [
  named('Sensor', 'id'),
  counted('Elements', 'elements'),
  counted('Missed', 'missed', bad),
  timed('Latency', 'latency_ns'),
  counted('Too fast', 'exceeding', bad),
];

const MEASURED_COLUMNS = [
  named('Update', 'name'),
  named('Executor', 'executor'),
  named('State', 'state'),
  counted('Elements', 'elements'),
  counted('Missed', 'missed', bad),
  timed('Longest', 'longest_ns'),
  timed('WCET', 'wcet_ns'),
  timed('Suggested', 'suggested_wcet_ns'),
  counted('Overruns', 'overruns', bad),
];

const PLUGIN_COLUMNS = [
  named('Update', 'name'),
  named('Plug-in', 'file'),
  named('Argument', 'argument'),
  named('State', 'state'),
  counted('Elements', 'elements'),
  counted('Missed', 'missed', bad),
  named('Results', 'told'),
];

const REACTION_COLUMNS = [
  named('Reaction', 'name'),
  named('On', 'called_by'),
  counted('Carried out', 'carried_out'),
  counted('Failed', 'failed', bad),
  named('First', 'first'),
  named('Failure', 'failure'),
];

/** The verdict in a message. */
function guaranteeMessage(guarantee) {
  const latency = Number.isFinite(guarantee.latency_ns) ? formatDuration(guarantee.latency_ns) : DASH;
  if (guarantee.verdict) {
    return `Every element within ${latency}, level ${guarantee.level ?? DASH}, ${formatDuration(guarantee.runtime_ns ?? 0)} of CPU time every ${formatDuration(guarantee.period_ns ?? 0)}.`;
  }
  return `Run by the executor ${guarantee.executor || DASH}: nothing was guaranteed.`;
}

/** The results of an update, as short text. */
function resultsOf(update) {
  return Object.entries(update.results ?? {})
    .map(([key, value]) => `${key}: ${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join('; ');
}

function pluginTable(title, updates) {
  const rows = updates.map((update) => ({ ...update, results: resultsOf(update) }));
  const parts = [sortableTable(title, PLUGIN_COLUMNS, rows, null)];
  const messages = updates.flatMap((update) => [update.message, ...list(update.complaints)].filter(Boolean));
  if (messages.length) parts.push(make('ul', 'notes', messages.map((message) => make('li', '', String(message)))));
  return parts;
}

function showMonitor(report) {
  const holder = byId('monitor');
  const parts = [];
  const { guarantee, reactions } = report;
  if (guarantee && typeof guarantee === 'object') {
    const verdict = String(guarantee.verdict ?? '');
    parts.push(make('div', 'section-head', [
      make('h2', '', 'Monitor'),
      verdict ? make('span', verdict === 'held' ? 'badge' : 'badge off', verdict) : null,
    ]));
    parts.push(make('p', '', guaranteeMessage(guarantee)));
    const updates = list(guarantee.updates);
    const messages = updates.flatMap((update) => [update.message, ...list(update.complaints)].filter(Boolean));
    const reasons = [...list(guarantee.reasons), ...list(guarantee.others), ...list(guarantee.notes), ...messages];
    if (reasons.length) parts.push(make('ul', 'notes', reasons.map((reason) => make('li', '', String(reason)))));
    if (list(guarantee.sensors).length) parts.push(sortableTable('Sensors of the monitor', GUARANTEED_COLUMNS, list(guarantee.sensors), null));
    if (list(guarantee.updates).length) parts.push(sortableTable('Updates of the monitor', MEASURED_COLUMNS, list(guarantee.updates), null));
    const inside = list(guarantee.updates).flatMap((update) => list(update.plugin));
    if (inside.length) parts.push(...pluginTable('Plug-ins of the monitor', inside));
  }
  if (list(report.updates).length) parts.push(...pluginTable('Updates', list(report.updates)));
  if (list(reactions?.reactions).length) {
    const rows = list(reactions.reactions).map((reaction) => ({ ...reaction, called_by: list(reaction.on).join(', ') }));
    parts.push(sortableTable('Reactions', REACTION_COLUMNS, rows, null));
    if (reactions.lost > 0) parts.push(make('p', 'notice', `${plural(reactions.lost, 'reaction')} lost: decided faster than they could be carried out.`));
  }
  holder.replaceChildren(...parts);
  holder.hidden = !parts.length;
}
