// What can be chosen: the microphones of this machine and the voices of the agent, as options of a <select>.

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

// throws an Error whose message can be shown
export async function listVoices(select, token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch("voices", { headers });
  const voices = await response.json();
  if (!response.ok) throw new Error(voices.error?.message);
  select.replaceChildren(
    ...voices.map((voice) => new Option(`${voice.name} (${voice.language})`, voice.id, voice.default, voice.default)),
  );
  select.disabled = false;
}
