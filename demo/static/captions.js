// The log of who said what: entries grow while they are spoken and are cut where the agent was interrupted.

const NAMES = { agent: "Agent", user: "You" };

export class Captions {
  constructor(log, empty) {
    this.log = log;
    this.empty = empty;
    this.entries = new Map();
    this.top = 0; // of what is in sight, as it was seen last
    this.#follow(true);
    log.addEventListener("scroll", () => { this.#look(); });
    // a narrower, lower or turned window moves the end away
    new ResizeObserver(() => { this.#look(); this.#stay(); }).observe(log);
  }

  // A caption replaces the one with its id. final: it will not change. cut: the agent was interrupted here.
  show({ id, role, text, final = false, cut = false }) {
    this.#look(); // before the end moves
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
    this.#stay();
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

  // Where the reader is. Looked at whenever it matters, since the event of a scroll comes a frame late: new
  // words or a turned window may come before. That the end is away says nothing, for both move it; only the
  // reader goes up, as long as the browser keeps no line in its place by itself.
  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < 60) this.#follow(true);
    else if (scrollTop < this.top) this.#follow(false);
    this.top = scrollTop;
  }

  // following: the end is in sight, so it stays there
  #follow(following) {
    this.following = following;
    this.log.classList.toggle("following", following);
  }

  #stay() {
    if (!this.following) return;
    this.log.scrollTop = this.log.scrollHeight;
    this.top = this.log.scrollTop;
  }
}
