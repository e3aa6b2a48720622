// What the user changes: the strategy, and the admin token that it may take.

import { call, token } from "./api.js";
import { find, make, reconcile, setText } from "./dom.js";

const NOTICE_MS = 6000;

export class Session {
  /** `changed` is called after a switch, and with a new token. */
  constructor(changed) {
    this.changed = changed;
    this.dialog = find("#token");
    this.input = find("#token-value");
    this.touched = false; // whether the user chose a strategy that is not switched to yet
    find("#switch").addEventListener("submit", (event) => this.submit(event));
    find("#strategy").addEventListener("change", () => (this.touched = true));
    find("#token-open").addEventListener("click", () => this.ask());
    find("#token form").addEventListener("submit", (event) => this.use(event));
    find("#token-forget").addEventListener("click", () => this.forget());
    find("#token-open").hidden = !token.get();
  }

  show({ state }) {
    const strategy = find("#strategy");
    offer(strategy, state.strategies.map((name) => [name, name]));
    const names = [...new Set(state.models.map((model) => model.name))];
    offer(find("#scope"), [["", "all models"], ...names.map((name) => [name, name])]);
    if (!this.touched && document.activeElement !== strategy) strategy.value = state.strategy;
  }

  async submit(event) {
    event.preventDefault();
    const query = { strategy: find("#strategy").value, model: find("#scope").value };
    try {
      const done = await call("/v1/switch", { method: "POST", query });
      this.tell(`${done.model || "All models"}: ${done.previous} → ${done.current}`);
      this.touched = false;
      this.changed();
    } catch (refused) {
      this.refused(refused);
    }
  }

  /** For who only looks: asked once, or a dialog that was closed would come back every second. */
  askOnce() {
    find("#token-open").hidden = false;
    if (!this.asked) this.ask();
    this.asked = true;
  }

  refused(error) {
    if (error.status === 401) this.ask();
    else this.tell([error.message, error.advice].filter(Boolean).join(": "));
  }

  ask() {
    find("#token-open").hidden = false;
    if (this.dialog.open) return;
    this.input.value = "";
    this.dialog.showModal();
  }

  use(event) {
    event.preventDefault();
    token.set(this.input.value);
    this.asked = false;
    this.input.value = "";
    this.dialog.close();
    this.changed();
  }

  forget() {
    token.forget();
    this.dialog.close();
    this.tell("The token is forgotten.");
  }

  tell(text) {
    const notice = find("#notice");
    setText(notice, text);
    notice.hidden = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (notice.hidden = true), NOTICE_MS);
  }
}

function offer(select, options) {
  if (document.activeElement === select) return; // do not pull an open list away
  const chosen = select.value;
  reconcile(select, options, ([value]) => value, ([value, text]) => make("option", { value }, text), () => {});
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
