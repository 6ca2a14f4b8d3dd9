// Measures the loudness (RMS) of each of its inputs over every 128 samples, and reports eight blocks at a time.
const BLOCKS = 8;

class Meter extends AudioWorkletProcessor {
  constructor(options) {
    super();
    this.inputs = options.numberOfInputs;
    this.fill = 0;
    this.batch = new Float32Array(BLOCKS * this.inputs);
    this.from = 0;
  }

  process(inputs) {
    if (this.fill === 0) this.from = currentTime;
    for (let i = 0; i < this.inputs; i++) {
      const samples = inputs[i][0];
      let sum = 0;
      if (samples) for (let n = 0; n < samples.length; n++) sum += samples[n] * samples[n];
      this.batch[this.fill * this.inputs + i] = samples ? Math.sqrt(sum / samples.length) : 0;
    }
    this.fill += 1;
    if (this.fill === BLOCKS) {
      this.port.postMessage({ from: this.from, levels: this.batch });
      this.fill = 0;
    }
    return true;
  }
}

registerProcessor("meter", Meter);
