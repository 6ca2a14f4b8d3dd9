// What can be chosen: the microphones of this machine and the voices of the agent, as options of a <select>.

const VOICES_MS = 3000;

// keeps the choice while it is there
export async function listMicrophones(select) {
  const devices = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
  const chosen = select.value;
  const options = devices
    .filter((device) => device.kind === "audioinput" && device.deviceId && device.deviceId !== "default")
    .map((device, n) => new Option(device.label || `Microphone ${n + 1}`, device.deviceId));
  select.replaceChildren(new Option("System default", ""), ...options);
  if (options.some((option) => option.value === chosen)) select.value = chosen;
}

// keeps the choice while it is there; throws an Error whose message can be shown
export async function listVoices(select, token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch("voices", { headers, signal: AbortSignal.timeout(VOICES_MS) });
  const voices = await response.json();
  if (!response.ok) throw new Error(voices.error?.message);
  const names = voices.map(({ name, language }) => (language === "und" ? name : `${name} (${language})`));
  const same = (voice, n) => select.options[n]?.value === voice.id && select.options[n].text === names[n];
  if (select.options.length === voices.length && voices.every(same)) return; // it may be open
  const chosen = select.value;
  select.replaceChildren(
    ...voices.map((voice, n) => new Option(names[n], voice.id, voice.default, voice.default)),
  );
  if (voices.some((voice) => voice.id === chosen)) select.value = chosen;
  select.disabled = voices.length === 0;
}
