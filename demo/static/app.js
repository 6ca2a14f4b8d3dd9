// The page itself: what is pressed, what is shown, and what a call tells it.
import { Call, CallError } from "./call.js";
import { Captions } from "./captions.js";
import { ARRIVED, HEARD, MIC } from "./levels.js";
import { Sound } from "./sound.js";
import { Trace, height } from "./trace.js";

const BACK_OFF_MS = [500, 1000, 2000, 4000, 8000];
const MIC_WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
const STATES = {
  idle: "Ready when you are",
  microphone: "Asking for the microphone…",
  connecting: "Connecting…",
  initializing: "Connecting…",
  listening: "Listening",
  thinking: "Thinking…",
  speaking: "Speaking",
  reconnecting: "Reconnecting…",
  ended: "Call ended",
};
const DENIED = {
  NotAllowedError: "The microphone is blocked for this page. Allow it beside the address bar, then press Call again.",
  NotFoundError: "No microphone was found. Plug one in, then press Call again.",
  NotReadableError: "The microphone is in use by another program. Close that, then press Call again.",
  OverconstrainedError: "The chosen microphone is gone. Choose another one, then press Call again.",
};
const INSECURE =
  "Browsers give the microphone to https pages and to localhost only, and this page is neither. Open it there, or continue by typing.";

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const captions = new Captions($("log"), $("empty"));
const trace = new Trace($("trace"));

let state = "idle";
let sound = null;
let call = null;
let stream = null; // the microphone
let wanted = null; // a call is wanted: {typing}
let attempt = 0;
let retry = null;
let startedMs = null;
let muted = false;
let typedMs = null; // when the turn that is being answered was typed
let pending = []; // typed before the call was there
let speaking = null; // the utterance whose onset is awaited: {at, toldMs, endMs}
const marks = [];
const stateLog = [];
const latency = { reply_ms: [], heard_ms: [], barge_ms: [] };

function mark(name, more = {}) {
  marks.push(Object.freeze({ name, page_ms: performance.now(), ...more }));
  if (marks.length > 2000) marks.shift();
}

function setState(next) {
  if (state === next) return;
  state = next;
  stateLog.push(Object.freeze({ state, page_ms: performance.now() }));
  if (stateLog.length > 2000) stateLog.shift();
  $("state").textContent = STATES[next] ?? next;
  document.body.dataset.state = next;
}

function setPhase(phase) {
  document.body.dataset.phase = phase;
  const idle = phase === "idle";
  const moved = document.activeElement === $(idle ? "hang-up" : "call");
  $("call").hidden = !idle;
  $("hang-up").hidden = idle;
  if (moved) $(idle ? "call" : "hang-up").focus();
  $("mute").disabled = idle || !stream;
}

function hint(text) { $("hint").textContent = text; }

function notice(text, { typing = false } = {}) {
  $("notice-text").textContent = text;
  $("by-typing").hidden = !typing;
  $("notice").hidden = false;
}

// --- the call

async function start({ typing = false } = {}) {
  if (wanted) return;
  wanted = { typing };
  attempt = 0;
  $("notice").hidden = true;
  setPhase("call");
  try {
    sound ??= await openSound();
    await sound.context.resume(); // within the tap, as phones demand
    if (!typing) await openMicrophone();
  } catch (error) {
    const typingHelps = error.name in DENIED || error.message === INSECURE;
    stop("idle");
    notice(DENIED[error.name] ?? error.message ?? String(error), { typing: typingHelps });
    return;
  }
  if (wanted) connect(); // unless it was hung up meanwhile
}

async function openSound() {
  const opened = await Sound.open($("remote"));
  opened.onlevels = onLevels;
  return opened;
}

async function openMicrophone() {
  if (!navigator.mediaDevices) throw new Error(INSECURE);
  if (!call) setState("microphone");
  const device = $("mic").value;
  const audio = { ...MIC_WANTED, ...(device ? { deviceId: { exact: device } } : {}) };
  const opened = await navigator.mediaDevices.getUserMedia({ audio });
  if (!wanted) {
    for (const track of opened.getTracks()) track.stop();
    return;
  }
  closeMicrophone();
  stream = opened;
  for (const track of stream.getAudioTracks()) {
    track.enabled = !muted;
    track.onended = () => notice("The microphone was unplugged. Choose another one.");
  }
  sound.hearMicrophone(stream);
  setPhase("call");
  listMicrophones();
}

function closeMicrophone() {
  for (const track of stream?.getTracks() ?? []) {
    track.onended = null;
    track.stop();
  }
  stream = null;
}

async function connect() {
  setState(attempt ? "reconnecting" : "connecting");
  hint(attempt ? `Attempt ${attempt} of ${BACK_OFF_MS.length}` : "One moment");
  const mine = (call = new Call({ token, voice: $("voice").value, stream }));
  const on = (name, act) => mine.addEventListener(name, ({ detail }) => mine === call && act(detail));
  on("track", (remote) => sound.playRemote(remote));
  on("connected", onConnected);
  on("message", onMessage);
  on("lost", onLost);
  on("ended", onEnded);
  try {
    await mine.connect();
  } catch (error) {
    if (mine !== call || mine.over) return;
    mine.hangUp();
    if (error instanceof CallError && !error.retryable) {
      stop("idle");
      notice(error.message);
    } else onLost(error.message);
  }
}

function onConnected() {
  mark("connected");
  attempt = 0;
  startedMs ??= performance.now();
  sound.open(); // a cut of the call before
  if (muted) call.send({ type: "mic", muted });
  for (const text of pending.splice(0)) call.send({ type: "text", text });
  if (state === "connecting" || state === "reconnecting") setState("listening");
}

function onLost(why) {
  mark("lost", { why });
  captions.settle();
  speaking = null;
  if (!wanted) return;
  if (attempt >= BACK_OFF_MS.length) {
    stop("ended");
    notice(`The connection could not be restored: ${why}. Press Call to try again.`);
    return;
  }
  const wait = BACK_OFF_MS[attempt] * (0.8 + 0.4 * Math.random());
  attempt += 1;
  setState("reconnecting");
  hint(`${why[0].toUpperCase()}${why.slice(1)}. Trying again…`);
  retry = setTimeout(connect, wait);
}

function onEnded(why) {
  mark("ended", { why });
  stop("ended");
  if (why !== "hung up") captions.note(`The call ended: ${why}.`);
}

function stop(next) {
  clearTimeout(retry);
  wanted = null;
  pending = [];
  startedMs = typedMs = speaking = null;
  const old = call;
  call = null;
  if (old && !old.over) old.hangUp();
  sound?.playRemote(null);
  sound?.hearMicrophone(null);
  closeMicrophone();
  captions.settle();
  for (const id of ["agent-level", "mic-level"]) setMeter(id, 0);
  setState(next);
  setPhase("idle");
  hint(next === "ended" ? "Press Call to talk again." : "Press Call, then just talk. Interrupt whenever you like.");
}

// --- what the server tells

function onMessage(message) {
  switch (message.type) {
    case "mute": return onMute(message);
    case "unmute": return onUnmute(message);
    case "caption": return onCaption(message);
    case "state": return setState(message.state);
    case "latency": return mark("latency", message);
    case "error":
      mark("error", message);
      return message.fatal === false ? undefined : notice(message.message);
  }
}

function onMute({ why, at }) {
  const cutMs = sound.cut();
  speaking = null;
  mark("cut", { why, page_ms: cutMs, sent_ms: call.toPage(at) });
  if (sound.levels.peak(HEARD, 250) < 0.0025) return; // there was nothing to cut
  trace.cut(cutMs);
  const voice = sound.levels.lastVoice(2500);
  // the caller's sound must reach to the cut, else it was something else, a typed question for instance
  if (voice && !muted && voice.end > cutMs - 400) number("barge", cutMs + 5 - voice.begin);
}

function onUnmute({ why, at }) {
  sound.open();
  mark("open", { why, sent_ms: call.toPage(at) });
  if (why === "start") {
    const voice = muted ? null : sound.levels.lastVoice(12000);
    speaking = { at, toldMs: performance.now(), endMs: typedMs ?? voice?.end ?? null };
    typedMs = null;
  }
}

function onCaption(message) {
  captions.show(message);
  if (message.cut) mark("caption cut", { id: message.id, text: message.text });
}

// --- what is measured here

function onLevels() {
  const { levels } = sound;
  trace.add(levels);
  if (!speaking) return;
  const { at, toldMs, endMs } = speaking;
  const sentMs = call.toPage(at) ?? toldMs; // told within a millisecond or two, before the clocks are compared
  // not the end of what was cut: that sounds until the gain is down
  const heardMs = levels.firstSound(HEARD, Math.max(sentMs, sound.cutMs + 40));
  if (heardMs === null) {
    if (levels.nowMs > toldMs + 3000) speaking = null;
    return;
  }
  speaking = null;
  mark("heard", { page_ms: heardMs, sent_ms: sentMs });
  number("heard", heardMs - sentMs);
  if (endMs !== null && heardMs > endMs) number("reply", heardMs - endMs);
}

function number(name, ms) {
  latency[`${name}_ms`].push(Math.round(ms * 10) / 10);
  const small = document.createElement("small");
  small.textContent = "ms";
  $(`n-${name}`).replaceChildren(String(Math.round(ms)), small);
}

function onFrame(now) {
  const live = document.body.dataset.phase === "call" && sound;
  if (live) {
    trace.draw(now);
    setMeter("agent-level", sound.levels.peak(HEARD, 60));
    setMeter("mic-level", sound.levels.peak(MIC, 60));
  }
  requestAnimationFrame(onFrame);
}

function setMeter(id, level) {
  const meter = $(id);
  const share = height(level);
  meter.firstElementChild.style.transform = `scaleX(${share.toFixed(3)})`;
  const percent = String(Math.round(share * 10) * 10);
  if (meter.getAttribute("aria-valuenow") !== percent) meter.setAttribute("aria-valuenow", percent);
}

async function onSecond() {
  if (!call || call.over || startedMs === null) return;
  const seconds = Math.floor((performance.now() - startedMs) / 1000);
  if (state !== "reconnecting") {
    const typing = stream ? "" : " · by typing";
    const quiet = stream && muted ? " · microphone muted" : "";
    hint(`${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}${typing}${quiet}`);
  }
  const jitter = await call.jitterMs().catch(() => null);
  if (jitter !== null && sound) sound.jitterMs = jitter;
}

// --- what is pressed

$("call").addEventListener("click", () => start());
$("hang-up").addEventListener("click", () => stop("ended"));
$("by-typing").addEventListener("click", () => start({ typing: true }).then(() => $("text").focus()));
$("dismiss").addEventListener("click", () => { $("notice").hidden = true; });

$("mute").addEventListener("click", () => {
  muted = !muted;
  for (const track of stream?.getAudioTracks() ?? []) track.enabled = !muted;
  $("mute").setAttribute("aria-pressed", String(muted));
  call?.send({ type: "mic", muted });
});

$("mic").addEventListener("change", async () => {
  if (!wanted || !stream) return;
  try {
    await openMicrophone();
    await call?.useMicrophone(stream);
  } catch (error) {
    notice(DENIED[error.name] ?? error.message);
  }
});

$("voice").addEventListener("change", () => call?.send({ type: "voice", id: $("voice").value }));

$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  typedMs = performance.now();
  if (call?.channel?.readyState === "open") call.send({ type: "text", text });
  else {
    pending.push(text);
    if (!wanted) start({ typing: true });
  }
});

addEventListener("pagehide", () => call?.hangUp());
navigator.mediaDevices?.addEventListener("devicechange", listMicrophones);

async function listMicrophones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
  const chosen = $("mic").value;
  const options = devices
    .filter((device) => device.kind === "audioinput" && device.deviceId && device.deviceId !== "default")
    .map((device, n) => new Option(device.label || `Microphone ${n + 1}`, device.deviceId));
  $("mic").replaceChildren(new Option("System default", ""), ...options);
  if (options.some((option) => option.value === chosen)) $("mic").value = chosen;
}

async function listVoices() {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  try {
    const response = await fetch("voices", { headers });
    const voices = await response.json();
    if (!response.ok) throw new Error(voices.error?.message);
    $("voice").replaceChildren(
      ...voices.map((voice) => new Option(`${voice.name} (${voice.language})`, voice.id, voice.default, voice.default)),
    );
    $("voice").disabled = false;
  } catch (error) {
    notice(error.message ?? "The voices could not be loaded.");
  }
}

// for tests and measurements; it changes nothing
Object.defineProperty(globalThis, "sparkvoice", {
  value: Object.freeze({
    get state() { return state; },
    get stateLog() { return stateLog.slice(); },
    get marks() { return marks.slice(); },
    get latency() { return structuredClone(latency); },
    get clock() { return call ? { ...call.clock } : null; },
    get jitterMs() { return sound?.jitterMs ?? null; },
    get gain() { return sound?.gate.gain.value ?? null; },
    now: () => performance.now(),
    // RMS of each 128 samples since a page time: {from_ms, block_ms, mic, arrived, heard}
    levels: (sinceMs) => sound?.levels.since(sinceMs) ?? null,
    // page time of the last sounding sample: of what "arrived" or of what was "heard"
    lastSound: (side = "heard") => sound?.levels.lastSound(side === "arrived" ? ARRIVED : HEARD) ?? null,
  }),
});

setState("idle");
listVoices();
listMicrophones();
if (!isSecureContext) notice(INSECURE, { typing: true });
setInterval(onSecond, 1000);
requestAnimationFrame(onFrame);
trace.draw(performance.now());
