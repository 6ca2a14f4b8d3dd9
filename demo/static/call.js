// One connection to the agent: the offer, the media, the "ctl" channel and its clock. It never reconnects itself.

const GATHER_MS = 3000;
const CONNECT_MS = 10000;
const LOST_MS = 3000; // without a pong
const SHAKY_MS = 1500; // "disconnected" may heal

export class CallError extends Error {
  constructor(message, { retryable = false } = {}) {
    super(message);
    this.retryable = retryable;
  }
}

// Events: "connected", "message" (detail: the message), "track" (detail: MediaStream), "lost" (detail: why), "ended" (detail: why)
export class Call extends EventTarget {
  constructor({ token, voice, stream }) {
    super();
    this.token = token;
    this.voice = voice;
    this.stream = stream;
    this.over = false;
    this.clock = { offset: 0, rtt: Infinity }; // server clock = page clock + offset, ms
    this.rounds = [];
    this.pongMs = null;
  }

  async connect() {
    const pc = (this.pc = new RTCPeerConnection({ iceServers: [] }));
    this.channel = pc.createDataChannel("ctl");
    this.channel.onopen = () => this.#opened();
    this.channel.onclose = () => this.#lost("the connection closed");
    this.channel.onmessage = ({ data }) => this.#take(JSON.parse(data));
    pc.onconnectionstatechange = () => this.#watch();
    pc.ontrack = ({ track, receiver }) => {
      try { receiver.jitterBufferTarget = 0; } catch { /* a hint that not every browser knows */ }
      this.receiver = receiver;
      this.#tell("track", new MediaStream([track]));
    };
    const mic = this.stream?.getAudioTracks()[0];
    if (mic) this.sender = pc.addTrack(mic, this.stream);
    else pc.addTransceiver("audio", { direction: "recvonly" });

    await pc.setLocalDescription(await pc.createOffer());
    await this.#gathered();
    const answer = await this.#post({ sdp: pc.localDescription.sdp, voice: this.voice || null });
    if (this.over) return;
    await pc.setRemoteDescription({ type: "answer", sdp: answer.sdp });
    this.timer = setTimeout(() => this.#lost("no connection to the agent"), CONNECT_MS);
  }

  send(message) {
    if (this.channel?.readyState === "open") this.channel.send(JSON.stringify(message));
  }

  async useMicrophone(stream) {
    this.stream = stream;
    await this.sender?.replaceTrack(stream.getAudioTracks()[0]);
  }

  // page time, ms, of a server time, ms; null until the clocks have been compared
  toPage(serverMs) { return this.rounds.length ? serverMs - this.clock.offset : null; }

  // what a sample waits in the browser's buffer, averaged since the last question, ms
  async jitterMs() {
    let now = null;
    for (const report of (await this.receiver?.getStats())?.values() ?? [])
      if (report.type === "inbound-rtp") now = report;
    if (!now?.jitterBufferEmittedCount) return null;
    const before = this.stats ?? { jitterBufferDelay: 0, jitterBufferEmittedCount: 0 };
    this.stats = now;
    const emitted = now.jitterBufferEmittedCount - before.jitterBufferEmittedCount;
    return emitted > 0 ? ((now.jitterBufferDelay - before.jitterBufferDelay) / emitted) * 1000 : null;
  }

  hangUp() {
    this.send({ type: "bye" });
    this.#close();
  }

  #tell(name, detail) { this.dispatchEvent(new CustomEvent(name, { detail })); }

  async #post(body) {
    const headers = { "Content-Type": "application/json" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    let response;
    try {
      response = await fetch("offer", {
        method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(CONNECT_MS),
      });
    } catch {
      throw new CallError("The agent cannot be reached.", { retryable: true });
    }
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    throw new CallError(answer.error?.message ?? `The agent refused the call (${response.status}).`, {
      retryable: answer.error?.retryable ?? response.status >= 500,
    });
  }

  #gathered() {
    if (this.pc.iceGatheringState === "complete") return null;
    return new Promise((resolve) => {
      // a browser that has no usable address would gather for ever
      const timer = setTimeout(resolve, GATHER_MS);
      this.pc.addEventListener("icegatheringstatechange", () => {
        if (this.pc.iceGatheringState !== "complete") return;
        clearTimeout(timer);
        resolve();
      });
    });
  }

  #opened() {
    clearTimeout(this.timer);
    this.pongMs = performance.now();
    for (const wait of [0, 60, 120, 180, 240]) setTimeout(() => this.#ping(), wait);
    this.pinger = setInterval(() => {
      if (performance.now() - this.pongMs > LOST_MS) this.#lost("the agent does not answer");
      else this.#ping();
    }, 1000);
    this.#tell("connected");
  }

  #ping() { this.send({ type: "ping", t: performance.now() }); }

  #pong({ t, at }) {
    const now = (this.pongMs = performance.now());
    this.rounds.push({ rtt: now - t, offset: at - (t + now) / 2 });
    if (this.rounds.length > 30) this.rounds.shift();
    this.clock = this.rounds.reduce((best, one) => (one.rtt < best.rtt ? one : best));
  }

  #take(message) {
    if (this.over) return;
    if (message.type === "pong") this.#pong(message);
    else if (message.type === "ended") {
      this.#close();
      this.#tell("ended", message.why);
    } else this.#tell("message", message);
  }

  #watch() {
    clearTimeout(this.shaky);
    const state = this.pc.connectionState;
    if (state === "failed" || state === "closed") this.#lost(`the connection ${state}`);
    if (state === "disconnected") this.shaky = setTimeout(() => this.#lost("the connection broke"), SHAKY_MS);
  }

  #lost(why) {
    if (this.over) return;
    this.#close();
    this.#tell("lost", why);
  }

  #close() {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.timer);
    clearTimeout(this.shaky);
    clearInterval(this.pinger);
    // the goodbye must leave before the connection goes
    setTimeout(() => this.pc.close(), 50);
  }
}
