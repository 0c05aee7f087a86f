// SPDX-License-Identifier: MIT OR Apache-2.0
// The text in the search box. Plain words choose rows; `is:preempted`, `>2ms` and `by:NAME` are the
// conditions that Enter looks for in them.

const FIND_STATES = { running: STATE.RUNNING, waiting: STATE.RUNNABLE, runnable: STATE.RUNNABLE, blocked: STATE.BLOCKED, preempted: STATE.PREEMPTED, unknown: STATE.UNKNOWN, missed: STATE.MISSED };
const FIND_LENGTH = /^([<>])(\d+(?:\.\d+)?)(ns|us|µs|ms|s)$/;

/** A row is shown if it contains all words, and none of those that begin with a minus.
 *  `kind:thread`, `kind:cpu` and `kind:sensor` choose by kind. */
function parseQuery(text) {
  const words = [];
  const without = [];
  const find = { states: [], least: 0, most: Infinity, by: '', again: false };
  let kind = '';
  for (const word of text.trim().toLowerCase().split(/\s+/)) {
    const length = FIND_LENGTH.exec(word);
    if (!word || word === '-') continue;
    if (length) {
      const ns = Number(length[2]) * SPAN_UNITS[length[3]];
      if (length[1] === '>') find.least = ns;
      else find.most = ns;
    } else if (word.startsWith('is:') && word.slice(3) === 'again') {
      find.again = true;
    } else if (word.startsWith('is:') && FIND_STATES[word.slice(3)]) {
      find.states.push(FIND_STATES[word.slice(3)]);
    } else if (word.startsWith('by:')) {
      find.by = word.slice(3);
    } else if (word.startsWith('kind:')) {
      kind = word.slice(5);
    } else if (word.startsWith('-')) {
      without.push(word.slice(1));
    } else {
      words.push(word);
    }
  }
  return {
    find,
    isFilter: words.length + without.length > 0 || kind !== '',
    isFind: find.states.length > 0 || find.least > 0 || find.most < Infinity || find.by !== '' || find.again,
    matches: (search, of) => (!kind || kind === of) && words.every((word) => search.includes(word)) && !without.some((word) => search.includes(word)),
  };
}

/** The time of the next interval or element after `t` (or the last before it) in `row` that matches
 *  the query, or null. */
function findInRow(row, { find, isFind }, t, forward) {
  const step = forward ? 1 : -1;
  if (row.kind === 'thread') {
    const { intervals, run } = { intervals: row.intervals, run: row.run };
    const { starts, count } = intervals;
    for (let i = forward ? upperBound(starts, t) : lowerBound(starts, t) - 1; i >= 0 && i < count; i += step) {
      if (!isFind) return starts[i];
      const length = starts[i + 1] - starts[i];
      if (length < find.least || length > find.most) continue;
      if (find.states.length && !find.states.includes(intervals.states[i])) continue;
      if (find.again && intervals.reasonAt(i)?.[0] !== 'again') continue;
      if (find.by) {
        const reason = intervals.reasonAt(i);
        if (!reason || !['woken', 'displaced', 'yielded'].includes(reason[0])) continue;
        if (!run.nameOf(reason[1], starts[i]).toLowerCase().includes(find.by)) continue;
      }
      return starts[i];
    }
    return null;
  }
  if (row.kind === 'gaps' && isFind && !find.states.includes(STATE.MISSED)) return null;
  if (row.kind === 'sensor' && isFind) return null;
  return row.kind === 'process' || row.kind === 'run' || row.kind === 'cpu' ? null : nextChange(row, t, forward);
}
