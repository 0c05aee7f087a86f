// SPDX-License-Identifier: MIT OR Apache-2.0
// The verdicts of the run, worst first, and their constraints.

const VERDICT_KINDS = {
  held: ['good', 'M4 10.5 8.2 15 16.5 5.5'],
  violated: ['bad', 'M5 5 15 15M15 5 5 15'],
  inconclusive: ['unsure', 'M10 5v6M10 14.6v.1'],
};

const FINDING_NAMES = { constraints: 'Constraints', guarantee: 'Guarantee', metrics: 'Metrics', updates: 'Updates', reactions: 'Reactions' };

const CONSTRAINT_COLUMNS = [
  named('Constraint', 'name'),
  named('Verdict', 'verdict'),
  counted('Judged', 'judged'),
  counted('Offences', 'offences', bad),
  named('First offence', 'offence'),
  named('Reasons', 'why'),
];

/** Whether nothing is violated or inconclusive, as far as the report judges. */
function isGood(report) {
  return report.outcome === undefined || report.outcome === '' || report.outcome === 'complete';
}

function showVerdicts(report) {
  const holder = byId('verdicts');
  const parts = list(report.findings).map((finding) => {
    const [kind, path] = VERDICT_KINDS[finding.verdict] ?? VERDICT_KINDS.inconclusive;
    // A verdict that held is good on its own, but not next to one that did not hold.
    const shown = kind === 'good' && !isGood(report) ? 'plain' : kind;
    const verdict = String(finding.verdict ?? '');
    const title = `${FINDING_NAMES[finding.of] ?? finding.of} ${verdict}:`;
    return make('div', `verdict ${shown}`, [icon(path), make('div', '', [make('strong', '', title), make('span', '', ` ${finding.message ?? ''}`)])]);
  });
  const constraints = list(report.check?.constraints);
  if (constraints.length) {
    const rows = constraints.map((one) => ({ ...one, offence: one.first?.message, why: list(one.reasons).join(', ') }));
    parts.push(sortableTable('Constraints', CONSTRAINT_COLUMNS, rows, null));
  }
  holder.replaceChildren(...parts);
  holder.hidden = !parts.length;
}
