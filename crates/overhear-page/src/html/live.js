// SPDX-License-Identifier: MIT OR Apache-2.0
// A run that goes on: the server of the page sends pieces of news, and the rows grow.

/** Follows the run; `take` gets each piece, `say` the state of the connection. */
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
    // The earlier news are not valid any more, and the recording is read again from its begin: so
    // the page is loaded again.
    this.stream.addEventListener('again', () => {
      this.stream.close();
      location.reload();
    });
    this.stream.addEventListener('error', () => {
      // The server sends everything from the begin to a new connection, but the page has a part of
      // it already: it does not connect again.
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
