// The log of who said what: entries grow while they are spoken and are cut where the agent was interrupted.

const NAMES = { agent: "Agent", user: "You" };

export class Captions {
  constructor(log, empty) {
    this.log = log;
    this.empty = empty;
    this.entries = new Map();
    this.following = true; // the end is in sight, so it stays there
    log.addEventListener("scroll", () => { this.following = this.#atEnd(); });
    // a narrower, lower or turned window moves the end away
    new ResizeObserver(() => { if (this.following) this.#scroll(); }).observe(log);
  }

  // A caption replaces the one with its id. final: it will not change. cut: the agent was interrupted here.
  show({ id, role, text, final = false, cut = false }) {
    let entry = this.entries.get(id);
    if (!entry) {
      if (!text.trim()) return;
      entry = this.#add(role);
      this.entries.set(id, entry);
    }
    entry.text.textContent = text;
    entry.box.classList.toggle("open", !final);
    entry.box.setAttribute("aria-busy", String(!final)); // read aloud when complete, not word by word
    if (cut && !entry.mark) {
      entry.mark = document.createElement("em");
      entry.mark.className = "cut";
      entry.mark.textContent = "interrupted";
      entry.box.append(" ", entry.mark);
    }
    if (final && !text.trim()) {
      entry.box.remove();
      this.entries.delete(id);
    }
    if (this.following) this.#scroll();
  }

  // what is still open stays as it is; a new call's ids do not meet the old ones
  settle() {
    for (const { box } of this.entries.values()) {
      box.classList.remove("open");
      box.setAttribute("aria-busy", "false");
    }
    this.entries.clear();
  }

  #add(role) {
    const box = document.createElement("p");
    const who = document.createElement("b");
    const text = document.createElement("span");
    box.className = `said ${role}`;
    who.textContent = NAMES[role];
    box.append(who, " ", text);
    this.empty.remove();
    this.log.append(box);
    return { box, text, mark: null };
  }

  #atEnd() { return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60; }

  #scroll() { this.log.scrollTop = this.log.scrollHeight; }
}
