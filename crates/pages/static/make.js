// What a script adds to a page: elements, dialogs, words in passing. Text stays text, whatever is in it.

export function make(tag, members = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(members)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}

// A dialog that is gone once it is closed.
export function dialog(members, ...inside) {
  const made = make("dialog", members, ...inside);
  made.addEventListener("close", () => made.remove());
  document.body.append(made);
  made.showModal();
  return made;
}

export function toast(text, { bad = false, action, act, lasts = 5000 } = {}) {
  const words = make("span", {}, text);
  const box = make("div", { className: bad ? "toast bad" : "toast" }, words);
  if (action) box.append(make("button", { type: "button", onclick: () => { box.remove(); act(); } }, action));
  document.getElementById("toasts").append(box);
  if (lasts) setTimeout(() => box.remove(), bad ? lasts * 2 : lasts);
  return { say: (text) => { words.textContent = text; }, end: () => box.remove() };
}
