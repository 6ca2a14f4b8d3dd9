// What the page measures of a call: marks on its own clock, and the three numbers that it shows.
import { HEARD, SOUND } from "./levels.js";
import { CUT_S } from "./sound.js";

const KEPT = 2000; // marks, and states
const SOUNDING_MS = 250; // a cut of what was silent for so long cut nothing
const VOICE_BEFORE_CUT_MS = 2500; // how far back a caller's voice may have begun that caused a cut
const VOICE_TO_CUT_MS = 400; // it must reach this near, else something else did: a typed question for instance
const QUESTION_MS = 12000; // how far back the question may have ended that is answered
const ONSET_MS = 3000; // an utterance told of and not heard by then is not waited for
const AFTER_CUT_MS = 40; // what was cut still sounds until the gain is down

export class Figures {
  // show(name, ms): "reply", "heard" or "barge" has a new value
  constructor(show) {
    this.show = show;
    this.marks = [];
    this.states = [];
    this.latency = { reply_ms: [], heard_ms: [], barge_ms: [] };
    this.forget();
  }

  mark(name, more = {}) { keep(this.marks, { name, page_ms: performance.now(), ...more }); }

  state(state) { keep(this.states, { state, page_ms: performance.now() }); }

  typed() { this.typedMs = performance.now(); }

  // what was awaited will not come
  forget() {
    this.typedMs = null; // when the turn that is being answered was typed
    this.awaited = null; // the utterance whose onset is awaited: {at, toldMs, endMs}
  }

  // The agent was cut at `cutMs`; listening: whether the microphone was open. Returns whether it was to be heard.
  cut(levels, cutMs, listening) {
    this.awaited = null;
    if (levels.peak(HEARD, SOUNDING_MS) < SOUND) return false;
    const voice = levels.lastVoice(VOICE_BEFORE_CUT_MS);
    if (voice && listening && voice.end > cutMs - VOICE_TO_CUT_MS)
      this.#number("barge", cutMs + CUT_S * 1000 - voice.begin);
    return true;
  }

  // An utterance begins; at: server time of its first sample, ms.
  begun(levels, at, listening) {
    const voice = listening ? levels.lastVoice(QUESTION_MS) : null;
    this.awaited = { at, toldMs: performance.now(), endMs: this.typedMs ?? voice?.end ?? null };
    this.typedMs = null;
  }

  // New levels have come: the awaited onset may be among them. toPage: server time to page time, ms.
  look(sound, toPage) {
    if (!this.awaited) return;
    const { at, toldMs, endMs } = this.awaited;
    const sentMs = toPage(at) ?? toldMs; // told within a millisecond or two, before the clocks are compared
    const heardMs = sound.levels.firstSound(HEARD, Math.max(sentMs, sound.cutMs + AFTER_CUT_MS));
    if (heardMs === null) {
      if (sound.levels.nowMs > toldMs + ONSET_MS) this.awaited = null;
      return;
    }
    this.awaited = null;
    this.mark("heard", { page_ms: heardMs, sent_ms: sentMs });
    this.#number("heard", heardMs - sentMs);
    if (endMs !== null && heardMs > endMs) this.#number("reply", heardMs - endMs);
  }

  #number(name, ms) {
    this.latency[`${name}_ms`].push(Math.round(ms * 10) / 10);
    this.show(name, ms);
  }
}

function keep(list, entry) {
  list.push(Object.freeze(entry));
  if (list.length > KEPT) list.shift();
}
