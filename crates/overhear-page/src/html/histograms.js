// SPDX-License-Identifier: MIT OR Apache-2.0
// Histograms with the buckets as given: each bucket has the same width on the page, so linear
// buckets have a linear axis, and logarithmic ones a logarithmic axis.

const CHART = Object.freeze({ width: 440, height: 184, left: 52, right: 12, top: 12, bottom: 34 });
const MOST_BARS = 96;

/** The buckets that are shown: empty ones at the ends are left out, and neighbours are joined if
 *  there are too many to distinguish. */
function chartBuckets(given) {
  let buckets = list(given).filter((bucket) => Number.isFinite(bucket.count) && Number.isFinite(bucket.low));
  const first = buckets.findIndex((bucket) => bucket.count > 0);
  if (first < 0) return [];
  let last = buckets.length - 1;
  while (buckets[last].count === 0) last -= 1;
  buckets = buckets.slice(first, last + 1);
  const join = Math.ceil(buckets.length / MOST_BARS);
  if (join === 1) return buckets;
  const joined = [];
  for (let i = 0; i < buckets.length; i += join) {
    const part = buckets.slice(i, i + join);
    joined.push({ low: part[0].low, high: part[part.length - 1].high, count: part.reduce((sum, bucket) => sum + bucket.count, 0) });
  }
  return joined;
}

/** A round number at or above `value`, of which the half is round, too. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].map((factor) => factor * power).find((round) => round >= value * 0.999999);
}

function histogram(one) {
  const buckets = chartBuckets(one.buckets);
  const unit = String(one.unit ?? '');
  const figure = make('figure', 'histogram');
  const caption = make('figcaption', '', [make('span', 'chart-title', one.title ?? 'Histogram')]);
  figure.append(caption);
  if (!buckets.length) {
    figure.append(make('p', 'empty', 'No values were counted.'));
    return figure;
  }

  const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  const most = Math.max(...buckets.map((bucket) => bucket.count));
  const top = Math.max(4, roundUp(most));
  const value = (v) => (Number.isFinite(v) ? formatValue(v, unit) : '∞');
  caption.append(make('span', 'chart-detail', plural(total, 'value')));

  const { width, height, left, right, bottom } = CHART;
  const plotWidth = width - left - right;
  const plotHeight = height - CHART.top - bottom;
  const base = CHART.top + plotHeight;
  const slot = plotWidth / buckets.length;
  const children = [];

  for (let i = 0; i <= 4; i += 1) {
    const y = base - (plotHeight * i) / 4;
    children.push(svg('line', { x1: left, x2: width - right, y1: y, y2: y, class: i === 0 ? 'chart-base' : 'chart-grid' }));
    if (i % 2 === 0) children.push(svg('text', { x: left - 8, y: y + 4, class: 'chart-label', 'text-anchor': 'end' }, [formatCount((top * i) / 4)]));
  }
  // Labels are at bucket borders, with a distance that keeps them apart.
  const every = Math.max(1, Math.ceil(70 / slot));
  for (let i = 0; i <= buckets.length; i += every) {
    const x = left + i * slot;
    const border = i < buckets.length ? buckets[i].low : buckets[i - 1].high;
    children.push(svg('line', { x1: x, x2: x, y1: base, y2: base + 4, class: 'chart-base' }));
    if (x > width - right - 26) continue;
    children.push(svg('text', { x, y: base + 18, class: 'chart-label', 'text-anchor': i === 0 ? 'start' : 'middle', dx: i === 0 ? -4 : 0 }, [value(border)]));
  }

  let below = 0;
  const gap = slot > 5 ? 1 : 0;
  buckets.forEach((bucket, i) => {
    below += bucket.count;
    // A single late wake-up among a million matters: it stays visible.
    const size = bucket.count === 0 ? 0 : Math.max(2, (bucket.count / top) * plotHeight);
    const text = `${value(bucket.low)} to ${value(bucket.high)}: ${formatCount(bucket.count)} (${formatShare(bucket.count / total)}), up to here ${formatShare(below / total)}`;
    const label = svg('title', {}, [text]);
    children.push(svg('g', { class: 'chart-bar' }, [
      label,
      svg('rect', { x: left + i * slot, y: CHART.top, width: slot, height: plotHeight, class: 'chart-hit' }),
      svg('rect', { x: left + i * slot + gap / 2, y: base - size, width: Math.max(1, slot - gap), height: size, class: 'chart-fill' }),
    ]));
  });

  const peak = buckets.find((bucket) => bucket.count === most);
  const label = `${one.title}: ${plural(total, 'value')} from ${value(buckets[0].low)} to ${value(buckets[buckets.length - 1].high)}, most (${formatCount(most)}) between ${value(peak.low)} and ${value(peak.high)}`;
  figure.append(svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label, class: 'chart' }, children));
  return figure;
}

function showHistograms(report) {
  const holder = byId('histograms');
  const given = list(report.histograms);
  holder.hidden = !given.length;
  if (!given.length) return;
  holder.replaceChildren(make('div', 'section-head', [make('h2', '', 'Histograms')]), make('div', 'charts', given.map(histogram)));
}
