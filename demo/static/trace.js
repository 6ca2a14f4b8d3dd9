// The picture of the call: the agent's sound above the line, the caller's below, a mark where it was cut.
import { HEARD, MIC } from "./levels.js";

const SPAN_MS = 8000;
const BAR = 3, GAP = 2; // px
const BOTTOM_DB = -52, TOP_DB = -8;

export function height(level) {
  const db = 20 * Math.log10(Math.max(level, 1e-6));
  return Math.min(1, Math.max(0, (db - BOTTOM_DB) / (TOP_DB - BOTTOM_DB)));
}

export class Trace {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.bars = new Map(); // bar number -> [agent, caller], 0..1
    this.cuts = [];
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.#fit();
    new ResizeObserver(() => { this.#fit(); this.draw(performance.now()); }).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#fit();
      this.draw(performance.now());
    });
  }

  get barMs() { return (SPAN_MS * (BAR + GAP)) / Math.max(this.width, 1); }

  add(levels) {
    const number = Math.floor(levels.nowMs / this.barMs);
    const bar = this.bars.get(number) ?? [0, 0];
    this.bars.set(number, [
      Math.max(bar[0], height(levels.peak(HEARD, 22))),
      Math.max(bar[1], height(levels.peak(MIC, 22))),
    ]);
    if (this.bars.size > 2000) this.bars = new Map([...this.bars].slice(-1000));
  }

  cut(now) {
    this.cuts.push(now);
    if (this.cuts.length > 50) this.cuts.shift();
  }

  draw(now) {
    const { pen, width, tall, barMs } = this;
    const middle = Math.round(tall / 2);
    const reach = middle - 6;
    if (this.still.matches) now = Math.floor(now / 250) * 250;
    const x = (number) => width - ((now - number * barMs) / SPAN_MS) * width;
    pen.clearRect(0, 0, width, tall);
    pen.fillStyle = this.colours.line;
    pen.fillRect(0, middle - 0.5, width, 1);
    const newest = Math.floor(now / barMs);
    for (let number = newest - Math.ceil(SPAN_MS / barMs); number <= newest; number++) {
      const bar = this.bars.get(number);
      if (!bar) continue;
      this.#bar(x(number), middle - 3, -bar[0] * reach, this.colours.agent);
      this.#bar(x(number), middle + 3, bar[1] * reach, this.colours.you);
    }
    pen.fillStyle = this.colours.ink;
    for (const cut of this.cuts) {
      const at = width - ((now - cut) / SPAN_MS) * width;
      if (at > 0) pen.fillRect(at, 4, 1.5, middle - 8);
    }
  }

  #bar(x, from, length, colour) {
    if (Math.abs(length) < 1) return;
    const { pen } = this;
    pen.fillStyle = colour;
    pen.beginPath();
    pen.roundRect(x, Math.min(from, from + length), BAR, Math.abs(length), BAR / 2);
    pen.fill();
  }

  #fit() {
    const scale = devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.tall = this.canvas.clientHeight;
    this.canvas.width = this.width * scale;
    this.canvas.height = this.tall * scale;
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(
      ["agent", "you", "ink", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
  }
}
