// The page's ears and mouth: microphone, the gate that cuts the agent off, and the meter on all of it.
import { Levels, SIDES } from "./levels.js";

export const CUT_S = 0.005;
const OPEN_S = 0.003;

export class Sound {
  static async open(element) {
    const context = new AudioContext({ latencyHint: "interactive" });
    // an insecure page has no worklet: it can still speak, but measures nothing
    await context.audioWorklet?.addModule("meter-worklet.js");
    return new Sound(context, element);
  }

  constructor(context, element) {
    this.context = context;
    this.element = element;
    this.levels = new Levels(context.sampleRate);
    this.jitterMs = 80; // what waits in the browser's buffer; the call keeps it up to date
    this.closed = false; // the gate
    this.cutMs = -Infinity;
    this.gate = new GainNode(context);
    this.gate.connect(context.destination);
    this.meter = context.audioWorklet ? this.#meter() : null;
  }

  #meter() {
    const meter = new AudioWorkletNode(this.context, "meter", {
      numberOfInputs: SIDES, numberOfOutputs: 1, channelCount: 1, channelCountMode: "explicit",
    });
    meter.connect(this.context.destination); // it gives silence; unconnected it would not run
    this.gate.connect(meter, 0, 2);
    meter.port.onmessage = ({ data }) => {
      this.levels.push(data.from, data.levels, performance.now());
      this.onlevels?.();
    };
    return meter;
  }

  hearMicrophone(stream) {
    this.mic?.disconnect();
    this.mic = stream ? this.context.createMediaStreamSource(stream) : null;
    if (this.meter) this.mic?.connect(this.meter, 0, 0);
  }

  playRemote(stream) {
    this.remote?.disconnect();
    // Chrome gives WebAudio a remote stream's sound only while a media element plays it too
    this.element.srcObject = stream;
    if (!stream) return;
    this.element.play().catch(() => {});
    this.remote = this.context.createMediaStreamSource(stream);
    if (this.meter) this.remote.connect(this.meter, 0, 1);
    this.remote.connect(this.gate);
  }

  // silent within 5 ms; returns the page time of it
  cut() {
    const now = this.context.currentTime;
    this.gate.gain.cancelScheduledValues(now);
    this.gate.gain.setValueAtTime(this.gate.gain.value, now);
    this.gate.gain.linearRampToValueAtTime(0, now + CUT_S);
    this.cutEnd = now + CUT_S; // audio clock
    this.closed = true;
    this.cutMs = performance.now();
    return this.cutMs;
  }

  // open again, but not before what was under way at the cut has run out of the browser's buffer
  open() {
    if (!this.closed) return;
    const drainMs = Math.min(500, this.jitterMs + 60);
    const at = this.context.currentTime + Math.max(0, this.cutMs + drainMs - performance.now()) / 1000;
    // the cut itself must run to its end: a new sentence may be told in the same millisecond
    this.gate.gain.setValueAtTime(0, Math.max(at, this.cutEnd));
    this.gate.gain.linearRampToValueAtTime(1, at + OPEN_S);
    this.closed = false;
  }
}
