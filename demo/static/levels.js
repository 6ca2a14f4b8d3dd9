// The loudness of the microphone, of what arrives and of what is heard, over the last half minute.

export const MIC = 0, ARRIVED = 1, HEARD = 2;
export const SIDES = 3;
const KEPT_S = 30;
export const SOUND = 0.0025; // RMS, -52 dBFS: below it is codec noise
const VOICE = 0.008; // RMS, -42 dBFS: a microphone this loud may be speech

export class Levels {
  constructor(rate) {
    this.blockMs = 128000 / rate;
    this.size = Math.ceil((KEPT_S * 1000) / this.blockMs);
    this.rings = Array.from({ length: SIDES }, () => new Float32Array(this.size));
    this.count = 0; // blocks ever
    this.offsets = []; // page clock minus audio clock of the last batches, ms
    this.offset = 0;
    this.lastFrom = null;
  }

  // from: audio clock of the first block, seconds; now: page clock, ms
  push(from, levels, now) {
    const blocks = levels.length / SIDES;
    // the least delayed message tells best how the clocks lie
    this.offsets.push(now - (from * 1000 + blocks * this.blockMs));
    if (this.offsets.length > 200) this.offsets.shift();
    this.offset = Math.min(...this.offsets);
    for (let block = 0; block < blocks; block++) {
      for (let side = 0; side < SIDES; side++)
        this.rings[side][this.count % this.size] = levels[block * SIDES + side];
      this.count += 1;
    }
    this.endMs = (from * 1000 + blocks * this.blockMs); // audio clock, ms
  }

  get nowMs() { return this.count ? this.endMs + this.offset : 0; }

  // page time at which the block `back` blocks before the newest one ends
  timeOf(back) { return this.nowMs - back * this.blockMs; }

  level(side, back) {
    return back < Math.min(this.count, this.size) ? this.rings[side][(this.count - 1 - back) % this.size] : 0;
  }

  peak(side, ms) {
    let top = 0;
    for (let back = 0; back * this.blockMs < ms; back++) top = Math.max(top, this.level(side, back));
    return top;
  }

  // page time of the last block of `side` that sounds, looking back `ms`; null if none does
  lastSound(side, ms = KEPT_S * 1000) {
    for (let back = 0; back * this.blockMs < ms; back++)
      if (this.level(side, back) > SOUND) return this.timeOf(back);
    return null;
  }

  // page time of the caller's last voiced block, and of where that run began; gaps up to `gapMs` belong to it
  lastVoice(ms, gapMs = 180) {
    let begin = null, end = null;
    for (let back = 0; back * this.blockMs < ms; back++) {
      const at = this.timeOf(back);
      if (this.level(MIC, back) > VOICE) {
        end ??= at;
        begin = at - this.blockMs;
      } else if (begin !== null && begin - at > gapMs) break;
    }
    return end === null ? null : { begin, end };
  }

  // page time of the first sounding block of `side` after `since`; null if none yet
  firstSound(side, since) {
    let found = null;
    for (let back = 0; this.timeOf(back) > since && back < this.size; back++)
      if (this.level(side, back) > SOUND) found = this.timeOf(back) - this.blockMs;
    return found;
  }

  // for tests: everything since page time `since`
  since(since) {
    const blocks = Math.max(0, Math.min(this.count, this.size, Math.floor((this.nowMs - since) / this.blockMs)));
    const take = (side) => Array.from({ length: blocks }, (_, n) => this.level(side, blocks - 1 - n));
    return {
      from_ms: this.timeOf(blocks), block_ms: this.blockMs,
      mic: take(MIC), arrived: take(ARRIVED), heard: take(HEARD),
    };
  }
}
