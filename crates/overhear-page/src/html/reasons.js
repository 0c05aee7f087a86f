// SPDX-License-Identifier: MIT OR Apache-2.0
// The reason of a thread's state, in words.

/** The kernel's state bits of a thread that left its CPU asleep, the most specific first. */
const SLEEPS = [
  [0x402, 'idle, not counted as load (I)'],
  [0x102, 'uninterruptible sleep that a fatal signal ends (D)'],
  [0x1000, 'waiting for a real-time lock'],
  [2, 'uninterruptible sleep (D)'],
  [4, 'stopped (T)'],
  [8, 'stopped by a tracer (t)'],
  [0x40, 'parked (P)'],
  [1, 'interruptible sleep (S)'],
];

function sleepText(bits) {
  const known = SLEEPS.find(([mask]) => (bits & mask) === mask);
  return known ? known[1] : `state 0x${bits.toString(16)}`;
}

/** The reason of an interval for the tooltip: name and value, or null. */
function reasonFact(run, reason, t) {
  if (!reason) return null;
  const [kind, value] = reason;
  const thread = () => (value === 0 ? 'an idle CPU' : value === 0xffffffff ? 'not known' : run.nameOf(value, t));
  switch (kind) {
    case 'asleep': return ['Why', sleepText(value)];
    case 'displaced': return ['Preempted by', thread()];
    case 'yielded': return ['Gave way to', thread()];
    case 'woken': return ['Woken by', value === 0 ? 'an interrupt on an idle CPU' : thread()];
    case 'again': return ['Why', 'switched to itself'];
    default: return null;
  }
}

/** The wake-up that led to the state of a thread at `t`: the moment, and the waker if it was
 *  followed. */
function wakeBefore(run, thread, t) {
  const { intervals } = thread;
  const last = Math.min(intervals.find(t), intervals.count - 1);
  // The search back is bounded, because it runs under the pointer.
  for (let i = last; i >= 0 && i > last - 64; i -= 1) {
    const reason = intervals.reasonAt(i);
    if (reason?.[0] === 'woken') return { t: intervals.starts[i], waker: run.threadAt(reason[1], intervals.starts[i]), tid: reason[1] };
    if (intervals.states[i] === STATE.BLOCKED && i < last) return null;
  }
  return null;
}
