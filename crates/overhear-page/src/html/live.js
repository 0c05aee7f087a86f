// SPDX-License-Identifier: MIT OR Apache-2.0
// A run that goes on: the server that gave the page sends pieces of news, and the rows grow.

/** Follows the run; `take` gets each piece, `say` what the state of the connection is. */
class Live {
  constructor({ take, say }) {
    this.follow = true;
    this.pieces = 0;
    this.ended = false;
    this.stream = new EventSource('events');
    this.stream.addEventListener('message', (event) => {
      const news = JSON.parse(event.data);
      this.pieces += 1;
      this.ended = news.ended === true;
      take(news);
      say(this.ended ? 'ended' : 'live');
      if (this.ended) this.stream.close();
    });
    // What was read of the recording has to be read again from its begin: so does the page.
    this.stream.addEventListener('again', () => {
      this.stream.close();
      location.reload();
    });
    this.stream.addEventListener('error', () => {
      // The server tells a new connection everything from the begin, but the page has a part
      // of it already: it does not connect again by itself.
      this.stream.close();
      if (!this.ended) say('lost');
    });
  }
}

const LIVE_TEXTS = {
  waiting: ['Waiting for the first elements.', 'quiet'],
  live: ['Live: the run goes on.', 'on'],
  ended: ['The run has ended.', 'quiet'],
  lost: ['The connection is lost: overhear has ended, or does not answer. Reload to try again.', 'off'],
};

function showLive(state) {
  const holder = byId('live');
  holder.hidden = false;
  const [text, kind] = LIVE_TEXTS[state];
  if (holder.dataset.state === state) return;
  holder.dataset.state = state;
  holder.className = `live ${kind}`;
  byId('live-text').textContent = text;
  byId('follow').hidden = state !== 'live';
}
