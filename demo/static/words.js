// What the page says by itself.

export const STATES = {
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
export const DENIED = {
  NotAllowedError: "The microphone is blocked for this page. Allow it beside the address bar, then press Call again.",
  NotFoundError: "No microphone was found. Plug one in, then press Call again.",
  NotReadableError: "The microphone is in use by another program. Close that, then press Call again.",
  OverconstrainedError: "The chosen microphone is gone. Choose another one, then press Call again.",
};
export const BY_AGENT = "the agent hung up"; // as the server puts it
export const INSECURE =
  "Browsers give the microphone to https pages and to localhost only, and this page is neither. Open it there, or continue by typing.";
export const IDLE = "Press Call, then just talk. Interrupt whenever you like.";

// with a capital and one full stop, whether the text has them or not
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
