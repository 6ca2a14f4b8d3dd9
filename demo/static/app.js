// The page itself: what is pressed, what is shown, and what a call tells it.
import { Call, CallError } from "./call.js";
import { Captions } from "./captions.js";
import { Figures } from "./figures.js";
import { ARRIVED, HEARD, MIC } from "./levels.js";
import { listMicrophones, listVoices } from "./pickers.js";
import { Sound } from "./sound.js";
import { Trace, height } from "./trace.js";
import { BY_AGENT, DENIED, IDLE, INSECURE, STATES, sentence } from "./words.js";

const BACK_OFF_MS = [500, 1000, 2000, 4000, 8000];
const MIC_WANTED = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const captions = new Captions($("log"), $("empty"));
const trace = new Trace($("trace"));
const figures = new Figures(showNumber);

let state = "idle";
let sound = null;
let call = null;
let stream = null; // the microphone
let wanted = null; // a call is wanted: {typing}
let attempt = 0;
let retry = null;
let startedMs = null;
let muted = false;
let pending = []; // typed before the call was there

function setState(next, text = STATES[next] ?? next) {
  if (state === next) return;
  state = next;
  figures.state(state);
  $("state").textContent = text;
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
  $("notice-text").textContent = sentence(text);
  $("by-typing").hidden = !typing;
  $("notice").hidden = false;
}

// --- the call

async function start({ typing = false } = {}) {
  if (wanted) return;
  const mine = (wanted = { typing });
  attempt = 0;
  $("notice").hidden = true;
  setPhase("call");
  const voices = refreshVoices();
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
  await voices;
  if (wanted === mine) connect(); // unless it was hung up meanwhile
}

// a voice may have come or gone; that the list cannot be had is said by the call itself
async function refreshVoices() {
  await listVoices($("voice"), token).catch(() => {});
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
  listMicrophones($("mic"));
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
  figures.mark("connected");
  attempt = 0;
  startedMs ??= performance.now();
  sound.open(); // a cut of the call before
  if (muted) call.send({ type: "mic", muted });
  for (const text of pending.splice(0)) call.send({ type: "text", text });
  if (state === "connecting" || state === "reconnecting") setState("listening");
  showTime();
}

function onLost(why) {
  figures.mark("lost", { why });
  captions.settle();
  figures.forget();
  if (!wanted) return;
  if (attempt >= BACK_OFF_MS.length) {
    stop("ended");
    notice(`The connection could not be restored. ${sentence(why)} Press Call to try again.`);
    return;
  }
  const wait = BACK_OFF_MS[attempt] * (0.8 + 0.4 * Math.random());
  attempt += 1;
  setState("reconnecting");
  hint(`${sentence(why)} Trying again…`);
  retry = setTimeout(connect, wait);
}

function onEnded(why) {
  figures.mark("ended", { why });
  stop("ended", why === "hung up" ? "" : why);
}

// why: what ended the call, unless it was somebody here
function stop(next, why = "") {
  clearTimeout(retry);
  wanted = null;
  pending = [];
  startedMs = null;
  figures.forget();
  const old = call;
  call = null;
  if (old && !old.over) old.hangUp();
  sound?.playRemote(null);
  sound?.hearMicrophone(null);
  closeMicrophone();
  captions.settle();
  for (const id of ["agent-level", "mic-level"]) setMeter(id, 0);
  setState(next, why === BY_AGENT ? sentence(why) : STATES[next]);
  setPhase("idle");
  const told = why && why !== BY_AGENT ? `${sentence(why)} ` : "";
  hint(next === "ended" ? `${told}Press Call to talk again.` : IDLE);
}

// --- what the server tells

function onMessage(message) {
  switch (message.type) {
    case "mute": return onMute(message);
    case "unmute": return onUnmute(message);
    case "caption": return onCaption(message);
    case "state": return setState(message.state);
    case "latency": return figures.mark("latency", message);
    case "error":
      figures.mark("error", message);
      return message.fatal === false ? undefined : notice(message.message);
  }
}

function onMute({ why, at }) {
  const cutMs = sound.cut();
  figures.mark("cut", { why, page_ms: cutMs, sent_ms: call.toPage(at) });
  if (figures.cut(sound.levels, cutMs, !muted)) trace.cut(cutMs);
}

function onUnmute({ why, at }) {
  sound.open();
  figures.mark("open", { why, sent_ms: call.toPage(at) });
  if (why === "start") figures.begun(sound.levels, at, !muted);
}

function onCaption(message) {
  captions.show(message);
  if (message.cut) figures.mark("caption cut", { id: message.id, text: message.text });
}

// --- what is shown

function onLevels() {
  trace.add(sound.levels);
  figures.look(sound, (serverMs) => call.toPage(serverMs));
}

function showNumber(name, ms) {
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

function showTime() {
  const seconds = Math.floor((performance.now() - startedMs) / 1000);
  const typing = stream ? "" : " · by typing";
  const quiet = stream && muted ? " · microphone muted" : "";
  hint(`${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}${typing}${quiet}`);
}

async function onSecond() {
  if (!call || call.over || startedMs === null) return;
  if (state !== "reconnecting") showTime();
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
  figures.typed();
  if (call?.channel?.readyState === "open") call.send({ type: "text", text });
  else {
    pending.push(text);
    if (!wanted) start({ typing: true });
  }
});

addEventListener("pagehide", () => call?.hangUp());
navigator.mediaDevices?.addEventListener("devicechange", () => listMicrophones($("mic")));

// for tests and measurements; it changes nothing
Object.defineProperty(globalThis, "sparkvoice", {
  value: Object.freeze({
    get state() { return state; },
    get stateLog() { return figures.states.slice(); },
    get marks() { return figures.marks.slice(); },
    get latency() { return structuredClone(figures.latency); },
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
listVoices($("voice"), token).catch((error) => notice(error.message || "The voices could not be loaded."));
for (const event of ["pointerenter", "focus"]) $("voice").addEventListener(event, refreshVoices);
listMicrophones($("mic"));
if (!isSecureContext) notice(INSECURE, { typing: true });
setInterval(onSecond, 1000);
requestAnimationFrame(onFrame);
trace.draw(performance.now());
