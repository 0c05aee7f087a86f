// SPDX-License-Identifier: MIT OR Apache-2.0
// From pixel columns to pixels: each row becomes one strip of image data, which the canvas shows by
// a single call, independent of the number of intervals.
//
// No state is recognised by its colour alone: running is solid and full, blocked solid and pale,
// runnable is striped upwards, preempted downwards, unknown cross-hatched, missed barred. A bar
// that hides switches has a SERRATED upper edge, as in PIEscope's squiggles, and its fill stacks
// the states' shares of the time.

// Number of colours that distinguish the threads of a CPU's row; their names are next to them.
const OWNERS = 8;
// The indices of colours that are too dark for dark text.
const BRIGHT_TEXT = new Set([0]);

// A pattern is a square whose width is a power of two, so that it repeats by masking.
const TILE = 8;

/** "#rrggbb" as the 32 bits of an opaque pixel in memory order. */
function pixel(color) {
  const value = parseInt(color.trim().slice(1), 16);
  const red = value >> 16;
  const green = (value >> 8) & 255;
  const blue = value & 255;
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** The page's colours, read from its style sheet, and the patterns made of them. */
class Theme {
  constructor(scale) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    this.text = color('text');
    this.quiet = color('quiet');
    this.line = color('line');
    this.grid = color('grid');
    this.surface = color('surface');
    this.accent = color('accent');
    this.meter = color('meter');
    this.onRunning = color('on-running');
    this.onMark = color('on-mark');
    this.wake = color('wake');
    this.halo = `${color('surface')}b3`;
    this.dark = color('on-owner-dark');
    this.bright = color('on-owner-bright');
    this.markColor = color('mark');
    this.owners = Array.from({ length: OWNERS }, (_, i) => color(`owner-${i}`));
    this.ownerPixels = Uint32Array.from(this.owners, pixel);
    this.levelPixels = Uint32Array.from({ length: LEVELS }, (_, i) => pixel(color(`level-${i}`)));
    this.missed = color('missed');
    this.runningPixel = pixel(color('running'));
    this.soft = pixel(color('mark-soft'));
    this.font = style.getPropertyValue('--font');
    this.background = pixel(color('surface'));
    this.gridPixel = pixel(color('grid'));
    this.mark = pixel(color('mark'));
    this.dense = pixel(color('mark-dense'));

    this.tile = TILE * (scale >= 1.5 ? 2 : 1) * (scale >= 3 ? 2 : 1);
    this.patterns = new Uint32Array(STATES * this.tile * this.tile);
    const { tile } = this;
    const step = tile / TILE;
    const at = (x, y) => [Math.floor(x / step), Math.floor(y / step)];
    this.#pattern(STATE.ABSENT, color('surface'), color('surface'), () => false);
    this.#pattern(STATE.RUNNING, color('running'), color('running'), () => false);
    this.#pattern(STATE.BLOCKED, color('blocked'), color('blocked'), () => false);
    this.#pattern(STATE.RUNNABLE, color('runnable'), color('runnable-line'), (x, y) => (x + y) % tile < tile * 0.375);
    this.#pattern(STATE.PREEMPTED, color('preempted'), color('preempted-line'), (x, y) => (x - y + tile) % tile < tile * 0.375);
    this.#pattern(STATE.UNKNOWN, color('unknown'), color('unknown-line'), (x, y) => {
      const [u, v] = at(x, y);
      return (u + v) % TILE === 0 || (u - v + TILE) % TILE === 0;
    });
    this.#pattern(STATE.MISSED, color('missed'), color('missed-line'), (x) => x % (tile / 2) < tile * 0.25);
  }

  /** The colour of text on the colour of a thread. */
  onOwner(owner) {
    return BRIGHT_TEXT.has(owner % OWNERS) ? this.bright : this.dark;
  }

  #pattern(state, base, line, isLine) {
    const { tile } = this;
    const paint = pixel(base);
    const ink = pixel(line);
    for (let y = 0; y < tile; y += 1) {
      for (let x = 0; x < tile; x += 1) this.patterns[(state * tile + y) * tile + x] = isLine(x, y) ? ink : paint;
    }
  }
}

/** A strip of pixels as wide as the plot and as high as a row's bar. */
class Strip {
  constructor(width, height, scale) {
    this.width = width;
    this.height = height;
    this.scale = scale;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.tooth = new Uint8Array(width);
    this.levels = new Uint8Array(width * STATES);
  }

  /** Height of the cut at the top of each hidden column. A run of hidden columns too short to show
   *  a whole tooth is one notch of full depth. */
  #cutTeeth(columns) {
    const { width, tooth, scale } = this;
    const period = Math.round(6 * scale);
    const depth = Math.round(5 * scale);
    let x = 0;
    while (x < width) {
      if (columns.kind[x] !== HIDDEN) {
        tooth[x] = 0;
        x += 1;
        continue;
      }
      let end = x;
      while (end < width && columns.kind[end] === HIDDEN) end += 1;
      for (let i = x; i < end; i += 1) {
        const phase = (i % period) / period;
        tooth[i] = end - x < period ? depth : Math.round(depth * Math.abs(2 * phase - 1));
      }
      x = end;
    }
  }

  /** The begin of each of a hidden column's stacked states, from the bottom of the bar up. Running
   *  time and time in an unknown state must not vanish, however short they are. Waiting time is
   *  shown from a hundredth of the column's time on: every wake-up waits a little, and a line under
   *  every row would hide the waits that matter. */
  #stack(columns) {
    const { width, height, levels, scale } = this;
    const order = Strip.ORDER;
    for (let x = 0; x < width; x += 1) {
      if (columns.kind[x] !== HIDDEN) continue;
      let y = height;
      for (let k = 0; k < order.length; k += 1) {
        const share = columns.shares[x * STATES + order[k]];
        const isWait = order[k] === STATE.RUNNABLE || order[k] === STATE.PREEMPTED;
        const least = order[k] !== STATE.BLOCKED && share > (isWait ? 0.01 : 0) ? scale : 0;
        y -= Math.max(least, share * height);
        levels[x * STATES + k] = Math.max(0, Math.round(y));
      }
      // Rounding must not leave a slit below the upper edge; absent time keeps its room.
      if (columns.shares[x * STATES] < 0.01) levels[x * STATES + order.length - 1] = 0;
    }
  }

  /** Paints a row of states. */
  paintStates(columns, theme) {
    const { width, height, pixels, levels, tooth } = this;
    const { kind } = columns;
    const { tile, patterns, background } = theme;
    const mask = tile - 1;
    const order = Strip.ORDER;
    if (columns.hidden) {
      this.#cutTeeth(columns);
      this.#stack(columns);
    }
    for (let y = 0; y < height; y += 1) {
      const line = y * width;
      const row = (y & mask) * tile;
      for (let x = 0; x < width; x += 1) {
        let state = kind[x];
        if (state === HIDDEN) {
          state = STATE.ABSENT;
          if (y >= tooth[x]) {
            for (let k = 0; k < order.length; k += 1) {
              if (y >= levels[x * STATES + k]) {
                state = order[k];
                break;
              }
            }
          }
        } else if (state === EDGE) {
          pixels[line + x] = background;
          continue;
        }
        pixels[line + x] = patterns[state * tile * tile + row + (x & mask)];
      }
    }
  }

  /** Paints a CPU's row: each run in the colour of its thread. A column that hides runs shows the
   *  share of the time that the CPU was busy. */
  paintOwners(columns, theme, owners) {
    this.paintStates(columns, theme);
    const { width, height, pixels } = this;
    for (let x = 0; x < width; x += 1) {
      if (columns.kind[x] !== STATE.RUNNING) continue;
      const color = theme.ownerPixels[owners[columns.at[x]] % OWNERS];
      for (let i = x; i < height * width; i += width) pixels[i] = color;
    }
  }

  /** Paints a sensor's spans. */
  paintSpans(columns, theme) {
    this.paintStates(columns, theme);
    const { pixels } = this;
    const { runningPixel, mark } = theme;
    for (let i = 0; i < pixels.length; i += 1) if (pixels[i] === runningPixel) pixels[i] = mark;
  }

  /** Paints jobs, each in the colour of its level. */
  paintLevels(columns, theme, levelAt) {
    this.paintStates(columns, theme);
    const { width, pixels } = this;
    const { runningPixel, levelPixels } = theme;
    for (let x = 0; x < width; x += 1) {
      if (columns.kind[x] !== STATE.RUNNING && columns.kind[x] !== HIDDEN) continue;
      const color = levelPixels[levelAt(x)];
      for (let i = x; i < pixels.length; i += width) if (pixels[i] === runningPixel) pixels[i] = color;
    }
  }

  /** Paints the course of a number: a line of steps above a soft ground. A column with several
   *  elements has a line from the least to the greatest. */
  paintSeries(columns, theme, low, high) {
    const { width, height, pixels, scale } = this;
    pixels.fill(theme.background);
    const line = Math.max(1, Math.round(1.4 * scale));
    const room = height - line;
    const span = high - low || 1;
    const place = (value) => Math.round(room * (1 - Math.min(1, Math.max(0, (value - low) / span))));
    let before = NaN;
    for (let x = 0; x < width; x += 1) {
      const value = columns.last[x];
      if (Number.isNaN(value)) continue;
      const y = place(value);
      let top = y;
      let bottom = y;
      if (columns.count[x] && columns.low[x] <= columns.high[x]) {
        top = Math.min(top, place(columns.high[x]));
        bottom = Math.max(bottom, place(columns.low[x]));
        // The step itself is drawn at the change of the value.
        if (!Number.isNaN(before)) {
          top = Math.min(top, before);
          bottom = Math.max(bottom, before);
        }
      }
      for (let i = top; i < height; i += 1) pixels[i * width + x] = i < bottom + line ? theme.mark : theme.soft;
      before = y;
    }
  }

  /** Paints a sensor's row: one element in a column is a pin, more than one a serrated pile whose
   *  height is their number, on a logarithmic scale. */
  paintElements(columns, theme) {
    const { width, height, pixels, scale } = this;
    const { count, most, spacing } = columns;
    pixels.fill(theme.background);
    const period = Math.round(6 * scale);
    const stroke = Math.max(1, Math.min(Math.round(1.4 * scale), Math.floor(spacing / 2)));
    // If heads would touch each other, all are left out: the row has all of them, or none.
    const head = spacing > 10 * scale ? Math.round(3 * scale) : 0;
    for (let x = 0; x < width; x += 1) {
      if (count[x] === 0) continue;
      if (count[x] > 1) {
        const fill = 0.45 + (0.55 * Math.log(count[x])) / Math.log(Math.max(2, most));
        const cut = Math.round(4 * scale * Math.abs(((x % period) / period) * 2 - 1));
        const top = Math.min(height - 1, Math.round(height * (1 - fill)) + cut);
        for (let y = top; y < height; y += 1) pixels[y * width + x] = theme.dense;
        continue;
      }
      for (let y = head; y < height; y += 1) pixels.fill(theme.mark, y * width + x, y * width + Math.min(width, x + stroke));
      if (head) this.#paintHead(x + (stroke - 1) / 2, head, theme.mark);
    }
  }

  #paintHead(x, head, color) {
    const { width, height, pixels } = this;
    for (let dy = -head; dy <= head; dy += 1) {
      const y = head + dy;
      if (y < 0 || y >= height) continue;
      const reach = head - Math.abs(dy);
      const from = Math.max(0, Math.floor(x - reach));
      const to = Math.min(width, Math.ceil(x + reach) + 1);
      if (from < to) pixels.fill(color, y * width + from, y * width + to);
    }
  }

  /** Draws the grid first: over the bars it would look like gaps in them. */
  paintGrid(lines, theme) {
    const { width, pixels } = this;
    for (const x of lines) {
      if (x < 0 || x >= width) continue;
      for (let i = x; i < pixels.length; i += width) if (pixels[i] === theme.background) pixels[i] = theme.gridPixel;
    }
  }

  /** Adds gaps over the content of the strip. */
  overlayGaps(columns, theme) {
    const { width, height, pixels } = this;
    const { tile, patterns } = theme;
    const mask = tile - 1;
    const base = STATE.MISSED * tile * tile;
    for (let x = 0; x < width; x += 1) {
      if (columns.kind[x] !== STATE.MISSED) continue;
      for (let y = 0; y < height; y += 1) pixels[y * width + x] = patterns[base + (y & mask) * tile + (x & mask)];
    }
  }
}

// From the bottom of the bar up: running is at the bottom, the other states are above it.
Strip.ORDER = [STATE.RUNNING, STATE.PREEMPTED, STATE.RUNNABLE, STATE.BLOCKED, STATE.UNKNOWN];
